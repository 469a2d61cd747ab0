"""The base class of all systems: its results, its declarations, and the losses that it adds."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.module_tracker import ModuleTracker

from headwise.heads.ablation import Ablation
from headwise.heads.rules import Rule, TrainingWarning


class Routing(NamedTuple):
    """The decision of a system about its heads: their weights, and the heads that are selected.

    Attributes:
        weights: the weight of each expert, head, branch or mechanism, `(batch, time, units)`;
            `(batch, units)` if there is one decision per sequence, `(units,)` if one for all.
        indices: the selected units, `(batch, time, selected)`; None if all count.
        loss: a scalar to add to the training loss, its coefficients already in it, or None.
        padding: boolean `(batch, time)`, `True` at padding; `Attention.forward` sets it.
    """

    weights: Tensor
    indices: Tensor | None = None
    loss: Tensor | None = None
    padding: Tensor | None = None


@dataclass
class AttentionOutput:
    """The result of a system: its output, its attention weights, and its decision.

    It unpacks into output and weights, like the result of `nn.MultiheadAttention`.

    Attributes:
        output: `(batch, time, embed_dim)`.
        weights: attention weights `(batch, heads, queries, keys)` if asked for, else None.
        routing: the decision; None for standard attention.

    Example:
        >>> out = AttentionOutput(torch.zeros(2, 5, 8), None)
        >>> y, weights = out
        >>> y is out.output is out[0]
        True
    """

    output: Tensor
    weights: Tensor | None = None
    routing: Routing | None = None

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.output, self.weights))

    def __getitem__(self, index: Any) -> Any:
        return (self.output, self.weights)[index]

    def __len__(self) -> int:
        return 2


torch.export.register_dataclass(AttentionOutput)  # so that PyTorch finds the tensors in it


class System(nn.Module):
    """Base class of all systems: modules that replace an attention, or a larger part of a layer.

    Attributes:
        replaces: the part of a layer that it replaces: `"attention"`; `"feed-forward"`, which is
            an attention and the feed-forward behind it; or `"layer"`.
        layers: the layers that have the system if a plan names none: `"all"`, `"low"` (the first
            two), or `"middle"` (all but the first two and the last).
        routing_parameters: prefixes of the names of parameters that decide how heads are combined;
            `training.trainable: gates` trains these parameters alone.
        output_parameters: prefixes of parameters that map the heads to the width of the model.
        no_decay: prefixes of parameters without weight decay; biases, scalars, vectors and norms
            never have it.
        rule: its rule of training; None for gradient descent on all parameters.
        presets: named sets of options where a paper leaves them open: `paper` follows its text,
            `authors` their public code. A plan names one as the option `preset`.
        unit: the unit that its decisions weigh: head, expert, branch, mechanism.
        supported_ablations: names of its ablations; see `headwise.heads.ablation`.
        site, layer: the place in a model, such as `decoder_self` and 0; set by `place`.
        ablations: the ablations in force, which change evaluation alone; see `headwise.ablated`.
        routing_loss: the loss of its last call, or None; `headwise.auxiliary_loss` sums them.
        training_rule: the rule that trains it, set by `headwise.TrainingRules`; else False.
        holds_residual: whether its output is that of the layer, residual sums and norms included.
    """

    replaces: ClassVar[Literal["attention", "feed-forward", "layer"]] = "attention"
    layers: ClassVar[Literal["all", "low", "middle"]] = "all"
    routing_parameters: ClassVar[tuple[str, ...]] = ()
    output_parameters: ClassVar[tuple[str, ...]] = ()
    no_decay: ClassVar[tuple[str, ...]] = ()
    rule: ClassVar[type[Rule] | None] = None
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    unit: ClassVar[str] = "head"
    supported_ablations: ClassVar[tuple[str, ...]] = ()

    site: str = ""
    layer: int = 0
    ablations: tuple[Ablation, ...] = ()
    routing_loss: Tensor | None = None
    training_rule: Rule | bool = False
    holds_residual: bool = False
    # The results of the last call in training that have had a gradient: `output`, `loss`.
    _grads_seen: frozenset[str] | set[str] = frozenset()
    _is_checked: bool = False  # whether `_watch` has come to an end

    @classmethod
    def from_config(cls, config: Any, site: str, **options: Any) -> Self:
        """The system at a site of a model.

        Args:
            config: the model's `headwise.models.config.TransformerConfig`; its
                `attention_options()` hold for all attentions.
            site: `encoder_self`, `decoder_self` or `decoder_cross`.
            options: the plan's, which override the config's.
        """
        raise NotImplementedError

    @property
    def num_units(self) -> int:
        """The number of experts, heads, branches or mechanisms that its decisions weigh."""
        raise NotImplementedError

    @property
    def active_ablations(self) -> tuple[Ablation, ...]:
        """The ablations in force; none in training."""
        return () if self.training else self.ablations

    def place(self, site: str, layer: int) -> None:
        """Tells the system its place in a model, which calls this when it has built the system.

        A system that holds attentions passes the place on to them.
        """
        self.site, self.layer = site, layer

    def reset_parameters(self) -> None:
        """Gives all parameters new random values, by functions of `torch.nn.init` alone.

        `from_pretrained` calls it on modules whose weights are loaded already, and has these
        functions leave such weights as they are; nothing else knows to.
        """
        raise NotImplementedError

    def ablate_weights(
        self, weights: Tensor, active: Tensor | None = None, *, selected: bool = False
    ) -> Tensor:
        """Changes the weights of a decision, `(..., units)`, by the ablations in force.

        A system calls this before it uses its weights; in training, and without ablations, the
        weights stay the same. Systems that select units call `ablate_logits` first.

        Args:
            active: boolean, `True` at units that count, if not all do.
            selected: whether the units come from logits that `ablate_logits` has changed; then
                `uniform` alone, which leaves the selection as it is, changes weights.
        """
        for ablation in self.active_ablations:
            if not selected or ablation.name == "uniform":
                weights = ablation.weights(weights, active)
        return weights

    def ablate_logits(self, logits: Tensor, top_k: int) -> tuple[Tensor, int]:
        """Changes the logits of a router, `(..., units)`, and the number of units it selects."""
        for ablation in self.active_ablations:
            logits, top_k = ablation.logits(logits, top_k)
        return logits, top_k

    def __call__(self, *args: Any, **kwargs: Any) -> AttentionOutput:
        out: AttentionOutput = super().__call__(*args, **kwargs)
        if torch.compiler.is_exporting():
            return out
        self.routing_loss = None if out.routing is None else out.routing.loss
        is_watched = self.training and out.output.requires_grad and not self._is_checked
        if is_watched and not torch.compiler.is_compiling() and not is_repeated():
            self._watch(out.output, self.routing_loss)
        return out

    def _watch(self, output: Tensor, loss: Tensor | None) -> None:
        """Warns once, after a first backward pass, of a rule or a loss that is not used."""
        if not any(parameter.requires_grad for parameter in self.parameters()):
            return  # what is frozen needs neither
        if "output" in self._grads_seen:  # in the call before this one
            self._is_checked = True
            name = type(self).__name__
            if self.rule is not None and not self.training_rule:
                warnings.warn(
                    f"{name} learns without its rule of training, {self.rule.__name__}: make the "
                    f"optimizer by rules = headwise.TrainingRules(model, total_steps=...); with "
                    f"transformers' Trainer, use headwise.RulesMixin (docs/in-your-model.md)",
                    TrainingWarning,
                    stacklevel=3,
                )
            if "loss" not in self._grads_seen and loss is not None and loss.requires_grad:
                warnings.warn(
                    f"the loss that {name} adds (for balance) is in no loss that is trained by: "
                    f"add headwise.auxiliary_loss(model) to yours before backward()",
                    TrainingWarning,
                    stacklevel=3,
                )
            return
        seen: set[str] = set()  # the hooks hold it, and not the module, which holds the loss
        self._grads_seen = seen
        output.register_hook(lambda _: seen.add("output"))
        if loss is not None and loss.requires_grad:
            loss.register_hook(lambda _: seen.add("loss"))

    def __getstate__(self) -> dict[str, Any]:
        # A copy may be trained otherwise, and outlives the context of an ablation or an observer.
        transient = {"ablations", "observers", "routing_loss"}
        transient |= {"training_rule", "_grads_seen", "_is_checked"}
        return {name: value for name, value in self.__dict__.items() if name not in transient}


def auxiliary_loss(model: nn.Module) -> Tensor:
    """Returns the sum of the losses that the systems of a model add in its last forward pass.

    MoA and MoH return a balance loss, with its coefficients, as `out.routing.loss`. PyTorch's
    layers use the output alone; add this sum to the loss of such a model before `backward()`. The
    training loss of headwise's own models includes it. A system gives the loss of its last call: if
    a pass calls it twice, or not at all, add up `out.routing.loss` of each call instead.

    Args:
        model: any module, also in wrappers such as `DistributedDataParallel` or `torch.compile`.

    Returns:
        A scalar; 0 if no system adds a loss, or none has been called.

    Example:
        >>> import headwise as hw
        >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> layer.self_attn = hw.MixtureOfAttentionHeads(16, num_experts=4, top_k=2, head_dim=4)
        >>> y = layer(torch.randn(2, 5, 16))
        >>> loss = y.square().mean() + hw.auxiliary_loss(layer)
        >>> loss.backward()
    """
    systems = (module for module in model.modules() if isinstance(module, System))
    losses = [system.routing_loss for system in systems if system.routing_loss is not None]
    device = next((p.device for p in model.parameters()), None)
    return sum((loss.to(device) for loss in losses), start=torch.zeros((), device=device))


_tracker = ModuleTracker()  # hooks nothing: it is only asked whether a backward pass is under way


def is_repeated() -> bool:
    """Whether a computation is repeated in a backward pass, as gradient checkpointing does."""
    return not torch.compiler.is_compiling() and bool(_tracker.is_bw)


def _check_place(parent: nn.Module, name: str, child: Any) -> None:
    """Raises `ValueError` if a system is put into a module of PyTorch that would use it wrongly.

    A call cannot find it out: a batch of sequences has the shape of a sequence of batches, and the
    feed-forward of PyTorch's layer comes after the call.
    """
    if not isinstance(child, System):
        return
    place, system = f"{name} of a {type(parent).__name__}", type(child).__name__
    layers = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    # A subclass may compute otherwise, and have no feed-forward of its own.
    theirs = [(kind.forward, kind._ff_block) for kind in layers]
    used = (getattr(type(parent), name, None) for name in ("forward", "_ff_block"))
    if tuple(used) in theirs and child.replaces != "attention":
        raise ValueError(
            f"{place} cannot be {system}, which takes the place of more than an attention "
            f"({child.replaces}): put it into a layer of your own"
        )
    replaced = parent._modules.get(name)
    if isinstance(replaced, nn.MultiheadAttention) and not replaced.batch_first:
        raise ValueError(
            f"{place} has batch_first=False, expected True: {system} would attend over the batch. "
            f"Build the module with batch_first=True, and load the state dict of the old one"
        )


# PyTorch then calls it for each module of the process that becomes a child of another. Nothing less
# sees the attention that a system replaces, and it alone knows `batch_first` of PyTorch's layer.
register_module_module_registration_hook(_check_place)
