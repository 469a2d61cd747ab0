"""The base of all models: initialisation, losses, and the cost of their heads."""

import copy
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast, get_args

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput
from typing_extensions import Self

from headwise.heads.attention import Attention
from headwise.heads.system import System
from headwise.models.config import TransformerConfig
from headwise.models.hub import send, write_card
from headwise.models.outputs import AuxiliaryLoss
from headwise.models.plan import Plan, build_system
from headwise.models.sites import attention_sites
from headwise.models.trust import trusting
from headwise.ops.attention import Implementation, Known
from headwise.transformers_internals import (
    ModelHooks,
    RegisteredAttention,
    attn_implementation,
    is_loaded,
)

# What peft adapts by default: as in most decoders that it knows, and in BART.
_TARGET_MODULES = ["q_proj", "v_proj"]

_ASKED = ("output_attentions", "output_hidden_states")


class HeadwiseModel(ModelHooks):
    """A transformer whose attention follows the plan of its configuration.

    A model for a task holds a model without a head, its `base_model`. Its forward takes a batch as
    keyword arguments, with `labels` that are -100 where the model predicts nothing, and returns a
    `HeadwiseOutput`. A subclass calls `post_init()` at the end of its constructor.

    Arguments of every forward, beside what it names:

    - `attention_mask`: 1 at tokens and 0 at padding, as in transformers; the attention modules take
      masks as PyTorch does.
    - `num_items_in_batch`: the number by which the sum of the labels' losses is divided; by default
      the number of labels that are not -100.
    - `output_attentions`: whether to return the attention weights of each layer, see
      `headwise.models.decisions.attentions_noted`; by default as the configuration says.
    - `output_hidden_states`: whether to return what the first layer reads and what each layer
      returns, or the index of one of these, or a list of indices; likewise.
    - `return_dict`: False to return a tuple of what is not None.

    Where tokens are read:

    - `inputs_embeds`: what `get_input_embeddings()` gives for the tokens, in the place of
      `input_ids`, `(batch, time, embed_dim)`; the model scales it as it scales its own.
    - `position_ids`: positions of the tokens, `(batch, time)`; by default a token's position is the
      number of tokens before it, padding left out.
    """

    config: TransformerConfig
    config_class: ClassVar[type[TransformerConfig]]
    base_model_prefix = ""
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _input_embed_layer = "embedding"
    _no_split_modules: ClassVar = ["Layer"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        _tell_peft(config.model_type)

    @classmethod
    def from_pretrained(
        cls, *args: Any, trust_remote_code: bool | None = None, **kwargs: Any
    ) -> Self:
        """As in transformers; `trust_remote_code` lets it import the modules that the plan names.

        Weights are read from safetensors, unless `use_safetensors` says otherwise.

        Raises:
            ValueError: the plan names a class whose module is not imported, without that.
        """
        kwargs.setdefault("use_safetensors", True)  # it would unpickle a .bin file too
        with trusting() if trust_remote_code else nullcontext():
            return super().from_pretrained(*args, **kwargs)

    def push_to_hub(
        self, repo_id: str, *, max_shard_size: int | str = "50GB", tags: Any = (), **options: Any
    ) -> str:
        """As in transformers, with a card that says how to load the model, unless there is one.

        The folder `model` of a run has a fuller card, and a tokenizer: `hf upload user/name
        RUN/model` sends it. Returns the address of the commit.

        Raises:
            OSError: the hub cannot be reached, or does not let the user write there.
        """
        name, title = type(self).__name__, repo_id.rpartition("/")[2]
        load = f'import headwise\n\nmodel = headwise.{name}.from_pretrained("{repo_id}")'
        text = f"A model of headwise, of the class `{name}`. To load it: `pip install headwise`."
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, max_shard_size=max_shard_size)
            write_card(Path(folder), title, text, load, tags=["headwise", *(tags or ())])
            return send(Path(folder), repo_id, **options)

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        """Returns the multiply-accumulates outside the layers, for one sequence.

        `lengths` is its length in each stack: `{"encoder": 10, "decoder": 10}`.
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
            ValueError: the plan does not fit, or a system's output cannot stay the same.
        """
        other = copy.deepcopy(self)
        config, former = other.config, other.config.systems()
        config.attention = copy.deepcopy(attention)  # type: ignore[assignment]
        planned = config.systems()
        for place in attention_sites(other):
            site, layer = place.site, place.layer
            spec = planned[site][layer]
            if spec == former[site][layer]:
                continue
            try:
                system = build_system(spec, config.place(site))
                if neutral:
                    system.start_as_standard(place.module)
                else:
                    system.take_standard_weights(place.module)
            except ValueError as error:
                raise ValueError(
                    f"attention.{site}, layer {layer}: {spec['system']}: {error}"
                ) from error
            other.set_submodule(place.path, system)
        other._hand_on_attn_implementation()
        return other

    def post_init(self) -> None:
        super().post_init()
        self._hand_on_attn_implementation()

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        """Has all attentions compute by `"sdpa"`, `"eager"` or `"flex_attention"` from now on.

        They give the same output, up to rounding; see `headwise.ops.attention`. So do functions
        that transformers knows by name (`ALL_ATTENTION_FUNCTIONS`): flash attention, kernels of
        the hub, and those that are registered there.

        Raises:
            ValueError: another name.
            ImportError: what the name stands for is not installed.
        """
        super().set_attn_implementation(*args, **kwargs)
        self._hand_on_attn_implementation()

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        known = (*get_args(Known), *RegisteredAttention.names())
        if requested_attention is not None and requested_attention not in known:
            raise ValueError(
                f"attn_implementation is {requested_attention!r}, expected one of "
                f"{', '.join(map(repr, known))}, or a kernel of the hub, such as "
                f"'kernels-community/flash-attn2': where a GPU has flash attention for a call, "
                f"PyTorch's 'sdpa' uses it by itself"
            )
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    def _hand_on_attn_implementation(self) -> None:
        name = attn_implementation(self.config)
        implementation = cast(Implementation, name)
        if name not in get_args(Known) and name is not None:
            implementation = RegisteredAttention(name, self.config)
        for module in self.modules():
            if isinstance(module, Attention):
                module.implementation = implementation

    def checkpoint_layers(self, enable: bool, function: Callable[..., Any], every: int) -> None:
        if getattr(function, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                "use_reentrant is True, expected False: what the systems add to the loss has no "
                "gradients otherwise; leave use_reentrant out"
            )
        super().checkpoint_layers(enable, partial(function, use_reentrant=False), every)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None and not is_loaded(module.weight):
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
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)

    def _asked(self, others: Mapping[str, Any]) -> dict[str, Any]:
        """What a call asks of its layers, by the arguments that its forward does not name.

        With it goes what collects the losses that systems add: that of the model that holds this.

        Raises:
            TypeError: there is an argument that no forward has.
        """
        for name, value in others.items():
            # transformers passes unknown flags as False or None.
            if name in (*_ASKED, "return_dict", "losses") or value is None or value is False:
                continue
            raise TypeError(
                f"{name} is not an argument of {type(self).__name__}; what its systems decide "
                f"comes from headwise.record(model), and position_ids alone say where packed texts "
                f"begin, which decoders alone can read"
            )
        asked: dict[str, Any] = {"losses": others.get("losses") or AuxiliaryLoss()}
        for name in _ASKED:
            value = others.get(name)
            asked[name] = getattr(self.config, name) if value is None else value
        return asked

    def _returned(self, output: ModelOutput, others: Mapping[str, Any]) -> Any:
        """The output as an object with names, or as a tuple where `return_dict` is false."""
        as_dict = others.get("return_dict")
        as_dict = self.config.return_dict if as_dict is None else as_dict
        return output if as_dict else output.to_tuple()


class WithoutHead(HeadwiseModel):
    """A model that gives hidden states, by itself or held by a model for a task.

    `AutoModel` loads it from the folder of a model that holds it, and that one from its folder.

    Args:
        config: the configuration of the whole model.
        held: whether another model holds this one, and draws its weights with its own.
    """

    def __init__(self, config: TransformerConfig, *, held: bool = False) -> None:
        super().__init__(config)
        self.held = held

    def init_weights(self) -> None:
        if not self.held:
            super().init_weights()


def _tell_peft(model_type: str) -> None:
    """Puts a type of models into peft's tables of target modules, if peft is imported.

    peft has no way to register in them. Those that adapt Llama by the same maps get the new type.
    """
    constants = sys.modules.get("peft.utils.constants")
    for name, table in vars(constants).items() if constants is not None else ():
        if name.endswith("_TARGET_MODULES_MAPPING") and table.get("llama") == _TARGET_MODULES:
            table.setdefault(model_type, _TARGET_MODULES)


def model_class(config: TransformerConfig) -> type[HeadwiseModel]:
    """The class of models of a configuration; the module that defines it has to be imported."""
    for each in HeadwiseModel.__subclasses__():
        if getattr(each, "config_class", None) is type(config):
            return each
    raise ValueError(
        f"config is a {type(config).__name__}, expected the config_class of a subclass of "
        f"HeadwiseModel; import the module that defines it"
    )
