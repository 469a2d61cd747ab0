"""What a system says of itself, so that nobody else has to know it by its name."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from typing_extensions import Self

from headwise.heads.auxiliary_loss import NotedLosses
from headwise.heads.watching import watched
from headwise.ops.activations import Activation
from headwise.ops.norms import NormKind

if TYPE_CHECKING:
    from headwise.heads.rule import Rule

LayerWord = Literal["all", "low", "middle"]


class Routing(NamedTuple):
    """What a system decided about its heads.

    Attributes:
        weights: the weight of each expert, head, branch or mechanism, `(batch, time, units)`;
            `(batch, units)` if there is one decision per sequence, `(units,)` if one for all.
        indices: the units chosen, `(batch, time, chosen)`, where a system chooses; else None.
        loss: a scalar to add to the training loss, its coefficients already in it, or None.
        padding: boolean `(batch, time)`, `True` at padding; `Attention.forward` sets it.
        heard: how many units each part of the output listens to, `(batch, time)`, the mean over
            parts; None where all parts listen to the same.
    """

    weights: Tensor
    indices: Tensor | None = None
    loss: Tensor | None = None
    padding: Tensor | None = None
    heard: Tensor | None = None


class AttentionOutput(NamedTuple):
    """What a system returns; `out[0]` and `out[1]` are what `nn.MultiheadAttention` returns.

    Attributes:
        output: `(batch, time, embed_dim)`.
        weights: attention weights `(batch, heads, queries, keys)` if asked for, else None.
        routing: what the system decided; None for standard attention.
    """

    output: Tensor
    weights: Tensor | None
    routing: Routing | None


class Place(NamedTuple):
    """Where in a model a system stands, and what the model has settled for it."""

    site: str  # encoder_self, decoder_self or decoder_cross
    embed_dim: int
    num_heads: int
    ffn_dim: int
    norm: str = "post"
    dropout: float = 0.0  # of sub-layers
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    ffn_activation: Activation = "relu"
    # The rest of the layer, for a system that takes the place of all of it.
    cross_attention: bool = False
    norm_kind: NormKind = "layer"
    norm_eps: float = 1e-5
    bias: bool | Literal["qkv"] = True
    head_dim: int | None = None
    num_key_value_heads: int | None = None
    qk_norm: bool = False
    rope_parameters: Mapping[str, Any] | None = None  # where positions are rotary

    def projections(self) -> dict[str, Any]:
        """The options of projections that the model has settled, where they are not the usual."""
        settled = {"head_dim": self.head_dim, "num_key_value_heads": self.num_key_value_heads}
        given: dict[str, Any] = {k: v for k, v in settled.items() if v is not None}
        if self.qk_norm:
            given |= {"qk_norm": True, "norm_eps": self.norm_eps}
        return given if self.bias is True else {**given, "bias": self.bias}


class Macs(NamedTuple):
    """Multiply-accumulates of one forward pass."""

    linear: int  # products with weights
    attention: int  # of queries with keys, and of attention weights with values

    def __add__(self, other: Any) -> "Macs":
        return Macs(self.linear + other.linear, self.attention + other.attention)


class Words(BaseModel):
    """How a report speaks of what a system decides.

    Every system has an object of this class as its attribute `words`. It is stored with the
    results of a run, so that a report needs nothing else to explain them.

    Example:
        >>> Words(unit="branch", units="branches", measure="weight").units
        'branches'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str = Field("expert", description="What the weights of a decision belong to.")
    units: str = Field("experts", description="Several of these.")
    decision: str = Field("weights", description="What is decided, as it stands in a sentence.")
    measure: Literal["lead", "choice", "weight"] = "weight"
    """What a unit's share of the work is: how often its weight is the largest (lead), how often it
    is among the chosen (choice), or its mean weight (weight)."""
    entropy: str = (
        "says how evenly the weights are spread: on the dashed line all count alike, near 0 a "
        "single one decides."
    )
    """What the entropy of the weights means; the sentence begins with it."""
    share: str = "is the mean weight."
    """What a unit's share means; the sentence begins with it."""
    part: str = ""
    """The part of the output that listens to units of its own; empty for none."""
    shows_lowest: bool = False
    """Whether the lowest percentile of the entropy is drawn too, which shows whether the system is
    certain at least somewhere."""
    recorded: dict[str, str] = {}
    """What the rule of training records: its name, and a symbol for it."""
    recorded_meaning: str = ""
    """What is recorded, in words: the sentence says that it moved in training."""


class System(nn.Module):
    """A module that a plan can put into a model: a base for what models ask of all of them.

    Attributes:
        replaces: the part of a layer whose place it takes: `"attention"`; `"feed-forward"`, an
            attention and the feed-forward behind it; or `"layer"`, all of it.
        default_layers: where it stands if a plan does not say: in `"all"` layers, in the `"low"`
            ones (the first two), or in the `"middle"` (all but the first two and the last).
        first_site_layers: the layers in which its paper puts it, of the model's first site alone;
            a plan asks for that by `{SYSTEM: LAYERS}`. None if the paper has no such arrangement.
        routing_parameters: beginnings of the names of the parameters that decide how heads are
            combined; they are counted apart, and `training.train: gates` trains them alone.
        costed_parts: the modules in it whose share of its parameters `headwise cost` tells.
        output_parameters: those of the parameters that map what the heads have read to the width of
            the model.
        no_decay: those of the parameters that take no weight decay, beside biases, scalars, vectors
            and PyTorch's norms, which never do.
        rule: its rule of training, or None if gradient descent on all parameters is all.
        ablations: ways to evaluate it otherwise than it was trained, by name. Each is a function
            `(system, *, option=default, ...)` that returns what `ablation` is to be; the first line
            of its docstring says what it does. See `headwise.models.ablation`.
        presets: options together, by name, for what a paper leaves open: `paper` are those of its
            text, `authors` those of their public code; or by the names of the papers that print
            them, where there are several. A plan names one as the option `preset`.
        words: what its decisions are called in reports.
        holds_residual: whether its output is that of the layer, residual sums and norms included.
        is_transposed: whether tensors of several maps are laid out map × in × out; peft asks.
        unlike_standard: why no weights make its output that of standard attention.
        ablation: what the ablation in force has returned; None without one. `forward` looks at it
            in evaluation only.
        losses: those of its last calls, for `headwise.auxiliary_loss`.
        shown: the attributes that `print` shows.
    """

    replaces: ClassVar[Literal["attention", "feed-forward", "layer"]] = "attention"
    default_layers: ClassVar[LayerWord] = "all"
    first_site_layers: ClassVar[LayerWord | None] = None
    routing_parameters: ClassVar[tuple[str, ...]] = ()
    costed_parts: ClassVar[tuple[str, ...]] = ()
    output_parameters: ClassVar[tuple[str, ...]] = ()
    no_decay: ClassVar[tuple[str, ...]] = ()
    rule: ClassVar["type[Rule] | None"] = None
    ablations: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    words: ClassVar[Words] = Words()
    shown: ClassVar[tuple[str, ...]] = ()
    is_transposed: ClassVar[bool] = True
    unlike_standard: ClassVar[str] = (
        "it does not say how; a system that can overrides start_neutral"
    )

    ablation: Any = None
    holds_residual: bool = False
    follows_rule: bool = False  # set by whoever trains by the rule
    warned_of_rule: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.losses = NotedLosses()
        self.register_forward_hook(_note_loss)
        watched.add(self)

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        """The system at a place of a model; `options` are the plan's, and win."""
        raise NotImplementedError

    @classmethod
    def from_attention(cls, attention: nn.Module, **options: Any) -> Self:
        """Returns the system with the weights of a standard attention and the same output.

        Raises:
            ValueError: the output cannot stay the same; `unlike_standard` says why.
        """
        raise cls._cannot_start_as_standard()

    def start_as_standard(self, attention: nn.Module) -> None:
        """Gives all parameters the values by which the output is that of a standard attention.

        A subclass of `MultiHeadAttention` overrides its `start_neutral` instead, unless it also has
        to change the weights that it takes.

        Raises:
            ValueError: there are no such values, or the attention has other sizes.
        """
        raise self._cannot_start_as_standard()

    def take_standard_weights(self, attention: nn.Module) -> None:
        """Copies the weights of a standard attention; further parameters stay as they are."""
        raise self._cannot_start_as_standard()

    @classmethod
    def _cannot_start_as_standard(cls) -> ValueError:
        start = f"{cls.__name__} cannot start from a standard attention with its output unchanged"
        return ValueError(f"{start}: {cls.unlike_standard}")

    def ablation_ranges(self) -> dict[str, range]:
        """Returns the values worth trying of the ablations' options, by the option's name."""
        return {}

    def reset_parameters(self) -> None:
        """Gives all parameters new random values, by functions of `torch.nn.init` alone.

        `from_pretrained` calls it on modules whose weights are loaded already, and has these
        functions leave such weights as they are; nothing else knows to.
        """
        raise NotImplementedError

    def key_size(self) -> tuple[int, int] | None:
        """How many heads of keys a cache holds for each position, and how wide these are."""
        return None

    def unit_of_head(self) -> list[int] | None:
        """For each head the number of the expert or mechanism it belongs to; None if to none."""
        return None

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        """Multiply-accumulates for one sequence of `queries` that attends to `keys` positions."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.shown)

    def __getstate__(self) -> dict[str, Any]:
        # A copy may be trained otherwise, and outlives the context of an ablation or an observer.
        passing = ("follows_rule", "warned_of_rule", "ablation", "observers")
        return {name: value for name, value in self.__dict__.items() if name not in passing}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        watched.add(self)


def _note_loss(system: nn.Module, args: object, out: Any) -> None:
    # Tools that put another module in the place of a system take its hooks over.
    routing = out.routing if isinstance(out, AttentionOutput) else None
    if isinstance(system, System) and routing is not None and routing.loss is not None:
        system.losses.note(routing.loss, out.output)
