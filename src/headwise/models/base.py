"""The base of all models: initialisation, losses, and the cost of their heads."""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput
from typing_extensions import Self

from headwise.heads.system import System
from headwise.models.adapters import tell_peft
from headwise.models.config import TransformerConfig
from headwise.models.former_weights import take_scalars
from headwise.models.plan import Plan, build_system
from headwise.models.sites import attention_sites
from headwise.models.transformer import AuxiliaryLoss
from headwise.models.trust import trusting
from headwise.ops.labels import IGNORED_LABEL


@dataclass
class HeadwiseOutput(ModelOutput):
    """The output of every model; some add fields.

    Attributes:
        loss: the training loss, `token_loss` plus `auxiliary_loss`; None without labels. If
            `num_items_in_batch` is given, which counts the labels of further batches too, the
            latter is multiplied by this batch's share of them.
        logits: the predictions of the model.
        token_loss: the loss of the task: the sum over all labels that are not -100, divided by
            `num_items_in_batch`, or by their number.
        auxiliary_loss: the sum of the losses that systems of the plan add, or None.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    token_loss: Tensor | None = None
    auxiliary_loss: Tensor | None = None


class Losses(TypedDict):
    """The losses among the fields of `HeadwiseOutput`."""

    loss: Tensor | None
    token_loss: Tensor | None
    auxiliary_loss: Tensor | None


class HeadwiseModel(PreTrainedModel):
    """A transformer whose attention follows the plan of its configuration.

    Its forward takes a batch as keyword arguments, with `labels` that are -100 where the model
    predicts nothing, and returns a `HeadwiseOutput`. Its layers are in stacks named `encoder` and
    `decoder`, in which `headwise.models.sites` finds the systems. A subclass calls `post_init()` at
    the end of its constructor.
    """

    config: TransformerConfig
    config_class: ClassVar[type[TransformerConfig]]
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        tell_peft(config.model_type)

    @classmethod
    def from_pretrained(
        cls, *args: Any, trust_remote_code: bool | None = None, **kwargs: Any
    ) -> Self:
        """As in transformers; `trust_remote_code` lets it import the modules that the plan names.

        Raises:
            ValueError: the plan names a class whose module is not imported, without that.
        """
        with trusting() if trust_remote_code else nullcontext():
            return super().from_pretrained(*args, **kwargs)

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        """Returns the multiply-accumulates outside the layers, for one sequence.

        Args:
            lengths: the length of the sequence in each stack: `{"encoder": 10, "decoder": 10}`.
        """
        raise NotImplementedError

    def example_inputs(self, lengths: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns arguments of a forward pass over one sequence, to measure its cost."""
        (length,) = lengths.values()
        return {"input_ids": torch.ones(1, length, dtype=torch.long)}

    def with_attention(self, attention: Plan, *, neutral: bool = True) -> Self:
        """Returns a copy of the model with other systems at its standard attentions.

        The output in evaluation stays the same, up to rounding, until the copy is trained. All that
        the plan leaves as it is, such as frozen weights and the mode of training, is copied; the
        two models share no memory.

        Args:
            attention: the plan of the copy, see `headwise.models.plan`. It may only change what is
                standard, to systems that can start from standard attention.
            neutral: whether the output has to stay the same. If not, what the systems add to the
                weights that they take starts as their constructors say.

        Raises:
            ValueError: a plan that does not fit the model, a site that is not standard, or a system
                whose output cannot stay the same; the message says where, and why.
        """
        other = copy.deepcopy(self)
        config, former = other.config, other.config.systems()
        config.attention = copy.deepcopy(attention)  # type: ignore[assignment]
        planned = config.systems()
        for site, layer, module, path in attention_sites(other):
            spec = planned[site][layer]
            if spec == former[site][layer]:
                continue
            try:
                system = build_system(spec, config.place(site))
                if neutral:
                    system.start_as_standard(module)
                else:
                    system.take_standard_weights(module)
            except ValueError as error:
                raise ValueError(
                    f"attention.{site}, layer {layer}: {spec['system']}: {error}"
                ) from error
            other.set_submodule(path, system)
        return other

    def get_input_embeddings(self) -> nn.Module:
        return self._token_stack().embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self._token_stack().embedding = value

    def _token_stack(self) -> Any:
        """The first stack, if it reads tokens."""
        stack = getattr(self, "encoder", None) or getattr(self, "decoder", None)
        if not hasattr(stack, "embedding"):
            # transformers asks for embeddings in many places and catches this error.
            raise NotImplementedError(f"{type(self).__name__} reads no tokens")
        return stack

    @staticmethod
    def _load_pretrained_model(  # type: ignore[no-untyped-def]
        model, state_dict, checkpoint_files, *args, **kwargs
    ):
        found, others = PreTrainedModel._load_pretrained_model(
            model, state_dict, checkpoint_files, *args, **kwargs
        )
        take_scalars(model, found, state_dict, checkpoint_files)
        return found, others

    def _initialize_weights(self, module: nn.Module, *_: Any) -> None:
        # For models outside its own package, transformers skips modules without parameters of
        # their own, such as standard attention. `_init_weights` itself spares loaded weights.
        super()._initialize_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None and not _is_loaded(module.weight):
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, System):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def _refuse(self, arguments: Mapping[str, Any]) -> None:
        """Raise `TypeError` for unknown arguments, unless they are None or False."""
        for name, value in arguments.items():
            # transformers passes unknown flags as False or None.
            if value is not None and value is not False:
                raise TypeError(
                    f"{name} is not an argument of {type(self).__name__}; attention weights and "
                    f"routing come from the attention modules themselves, see "
                    f"headwise.models.sites"
                )


def model_class(config: TransformerConfig) -> type[HeadwiseModel]:
    """Returns the class of models of a configuration.

    Raises:
        ValueError: there is no such class, or the module that defines it is not imported.
    """
    for each in HeadwiseModel.__subclasses__():
        if getattr(each, "config_class", None) is type(config):
            return each
    raise ValueError(
        f"config is a {type(config).__name__}, expected the config_class of a subclass of "
        f"HeadwiseModel; import the module that defines it"
    )


def sum_losses(
    total: Tensor | None,
    labels: Tensor | None,
    num_items: Tensor | int | None,
    auxiliary: AuxiliaryLoss,
) -> Losses:
    """Returns the losses of a `HeadwiseOutput`; without labels only the auxiliary loss.

    Args:
        total: the loss of the task, summed over all labels that are not -100.
        labels: the labels.
        num_items: the number by which `total` is divided; by default the number of labels that are
            not -100.
        auxiliary: the losses that systems of the plan add.
    """
    if total is None or labels is None:
        return {"loss": None, "token_loss": None, "auxiliary_loss": auxiliary.total}
    count = (labels != IGNORED_LABEL).sum()
    token_loss = total / (count.clamp(min=1) if num_items is None else num_items)
    loss = token_loss
    if auxiliary.total is not None:
        # The step's losses are summed, over accumulated batches and processes: so that the weight
        # of the auxiliary one stays what it is, each batch has its share of it.
        share = 1 if num_items is None else count / num_items
        loss = token_loss + share * auxiliary.total
    return {"loss": loss, "token_loss": token_loss, "auxiliary_loss": auxiliary.total}


def total_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns the cross entropy summed over all labels that are not -100, at least in float32.

    Args:
        logits: `(..., classes)`.
        labels: `(...)`.
        label_smoothing: the probability that is spread over all classes.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def total_squared_error(predicted: Tensor, labels: Tensor) -> Tensor:
    """Returns the squared error summed over all labels that are not -100, at least in float32.

    >>> total_squared_error(torch.tensor([1.0, 5.0]), torch.tensor([3.0, -100.0]))
    tensor(4.)
    """
    dtype = torch.promote_types(predicted.dtype, torch.float32)
    errors = predicted.to(dtype) - labels.to(dtype)
    return errors.masked_fill(labels == IGNORED_LABEL, 0.0).square().sum()


def _is_loaded(weight: Tensor) -> bool:
    return getattr(weight, "_is_hf_initialized", False)
