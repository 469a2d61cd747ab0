"""What every system of heads has in common, whatever part of a layer it takes the place of."""

from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn
from typing_extensions import Self


class Routing(NamedTuple):
    """What a system decided about its heads.

    Attributes:
        weights: how much each expert, head or mechanism counts; the last dimension counts them.
        indices: the experts chosen, `(batch, time, top_k)`, where a system chooses (MoA).
        loss: a scalar to add to the training loss, its coefficients already in it, or None.
        kind: what the weights are, for those who read them. `"gates"` over experts (MAE), one row
            for each sequence or position; `"choices"`, zero where not chosen (MoA); `"agreement"`,
            each head's share of what the routing agreed on; `"competition"` of mechanisms for each
            position (TIM); `"branches"`, one row that holds for all positions (Weighted
            Transformer).
    """

    weights: Tensor
    indices: Tensor | None = None
    loss: Tensor | None = None
    kind: Literal["gates", "choices", "agreement", "competition", "branches"] = "gates"


class AttentionOutput(NamedTuple):
    """What a system returns; `out[0]` and `out[1]` are as with `nn.MultiheadAttention`.

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
    # The rest of the layer, for a system that takes the place of all of it.
    cross_attention: bool = False


class Macs(NamedTuple):
    """Multiply-accumulates of one forward pass."""

    linear: int  # products with weights
    attention: int  # of queries with keys, and of attention weights with values

    def __add__(self, other: Any) -> "Macs":
        return Macs(self.linear + other.linear, self.attention + other.attention)


class System(nn.Module):
    """A module that a plan can put into a model: a base for what models ask of all of them.

    Attributes:
        replaces: what part of a layer it takes the place of: `"attention"`; `"feed-forward"`, an
            attention and the feed-forward behind it; or `"layer"`, all of it.
        default_layers: where it stands if a plan does not say: `"all"` layers, or `"middle"`, all
            but the first two and the last.
        routing_parameters: names (or beginnings of names) of parameters that decide how heads are
            combined; they are counted apart.
    """

    replaces: ClassVar[Literal["attention", "feed-forward", "layer"]] = "attention"
    default_layers: ClassVar[Literal["all", "middle"]] = "all"
    routing_parameters: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        """The system at a place of a model; `options` are the plan's, and win."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw all parameters afresh, by functions of `torch.nn.init` alone.

        `from_pretrained` calls it on modules whose weights are loaded already, and has these
        functions leave such weights as they are; nothing else knows to.
        """
        raise NotImplementedError

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        """Multiply-accumulates for one sequence of `queries` that attends to `keys` positions."""
        raise NotImplementedError
