"""Gated attention: a sigmoid of the query's input scales what each head has read."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from headwise.heads.ablations import HEADS, Changed, drawn_weights, largest
from headwise.heads.attention import Inputs, Projections
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import Macs, Routing, Words
from headwise.ops.bounds import checked


def opened(layer: Any) -> Changed:
    """All gates are 1: standard attention with the same projections."""
    return Changed(torch.ones_like)


def uniform(layer: Any) -> Changed:
    """All gates of a position are their mean, so that its heads count alike."""
    return Changed(lambda gates: gates.mean((-2, -1), keepdim=True).expand_as(gates))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Changed:
    """The heads share the sum of a position's gates at random, the same everywhere in a layer."""
    (drawn,) = drawn_weights(layer.num_heads, 1, seed, index, count)

    def shared(gates: Tensor) -> Tensor:
        total = gates.mean(-1, keepdim=True).sum(-2, keepdim=True)  # (batch, queries, 1, 1)
        return (drawn.to(gates).unsqueeze(-1) * total).expand_as(gates)

    return Changed(shared)


def without_top_head(layer: Any) -> Changed:
    """At each position the head of largest gate adds nothing; the others stay as they are."""
    return Changed(lambda gates: gates * (1 - largest(gates.mean(-1)).unsqueeze(-1)))


class GatedAttention(MultiHeadAttention):
    """Multi-head attention with a gate behind each head, before the output projection.

    Qiu et al. 2025, *Gated Attention for Large Language Models: Non-linearity, Sparsity, and
    Attention-Sink-Free*, https://arxiv.org/abs/2505.06708.

        oᵢ ← oᵢ ⊙ σ(x Vᵢ),  y = Σᵢ oᵢ Wᵢ

    x is the input of the query, so each position has gates of its own. A gate is one number for a
    head, or one for each of its elements. Of the paper's variants this is the one that it finds
    best: behind the heads, other gates for each head, multiplied, and a sigmoid.

    x is what the query projection sees, as in the authors' code. The gate has no bias, as in the
    equation; in their code it has one where the query projection has. V is drawn by Glorot's rule.
    The paper trains with gates from the start on, and has none that start at 1.

    Args:
        gate: `"headwise"`, one gate for a head; or `"elementwise"`, one for each element of it.
        gate_start: what the gates are before training. `"random"`: σ of a map that is drawn at
            random, as in the paper. `"neutral"`: the gate is 2σ(x Vᵢ) and V starts at zero, so that
            all gates are 1, and the layer is standard attention until it is trained; for models
            that have been trained without gates. `from_attention` starts either so, and
            `over_heads` chooses it unless it is told otherwise.
        embed_dim, num_heads, projections: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is `(batch, queries, heads)`, the gate of each
        head, or the mean over its elements: between 0 and 1, or 2 after a neutral start. They are
        no distribution.

        The parameters are those of `MultiHeadAttention`, and `gate_proj.weight`, `(heads,
        embed_dim)` or `(heads * head_dim, embed_dim)`.

    Example:
        >>> attention = GatedAttention(embed_dim=32, num_heads=4)
        >>> attention(torch.randn(2, 5, 32)).routing.weights.shape
        torch.Size([2, 5, 4])
        >>> neutral = GatedAttention(32, 4, gate_start="neutral")
        >>> neutral(torch.randn(2, 5, 32)).routing.weights.unique()
        tensor([1.], grad_fn=<Unique2Backward0>)
    """

    routing_parameters = ("gate_proj",)
    heads_are_units = True
    shown = (*MultiHeadAttention.shown, "elementwise", "neutral_start")
    ablations: ClassVar = {
        "open": opened,
        "uniform": uniform,
        "random": random,
        "without-top-head": without_top_head,
        **HEADS,
    }
    words = Words(
        unit="head",
        units="heads",
        decision="gates",
        measure="weight",
        entropy="says how evenly the gates of a position are open. They are no distribution, so "
        "each is divided by the sum over the heads first: on the dashed line all are open equally "
        "wide, near 0 a single head is let through. How wide they are open in all, it does not "
        "say.",
        share="is the mean of a head's gate, divided by the sum over the heads: how far it is open "
        "in comparison with the others, not by itself.",
    )

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        gate: Literal["headwise", "elementwise"] = "headwise",
        gate_start: Literal["random", "neutral"] = "random",
        **projections: Unpack[Projections],
    ) -> None:
        super().__init__(embed_dim, num_heads, **projections)
        self.elementwise = gate == "elementwise"
        self.neutral_start = gate_start == "neutral"
        gates = num_heads * self.head_dim if self.elementwise else num_heads
        self.gate_proj = nn.Linear(embed_dim, gates, bias=False)
        self._reset_gates()

    @classmethod
    def defaults_over_heads(
        cls, num_heads: int, options: Mapping[str, Any], *, neutral: bool
    ) -> dict[str, Any]:
        return {"gate_start": "neutral"} if neutral else {}

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "gate_proj"):  # not yet while the base class is built
            self._reset_gates()

    def _reset_gates(self) -> None:
        draw = nn.init.zeros_ if self.neutral_start else nn.init.xavier_uniform_
        draw(self.gate_proj.weight)

    @torch.no_grad()
    def start_as_standard(self, attention: nn.Module) -> None:
        """Takes its weights; the gates' map starts at zero, so that all gates are equal.

        After a neutral start they are 1. Otherwise they are σ(0) = 1/2, which twice the output
        projection makes up for.
        """
        self.take_standard_weights(attention)
        nn.init.zeros_(self.gate_proj.weight)
        if not self.neutral_start:
            self.out_proj.weight.mul_(2)

    def start_neutral(self) -> None:
        """The gates' map starts at zero, so that all gates are 2σ(0) = 1.

        Raises:
            ValueError: gates without the factor 2 cannot be 1.
        """
        if not self.neutral_start:
            raise ValueError(
                "gate_start is 'random', expected 'neutral': the gates are then 2σ and start at 1"
            )
        nn.init.zeros_(self.gate_proj.weight)

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        logits = self.gate_proj(inputs.query).unflatten(-1, (self.num_heads, -1))
        # Float32 at least: bf16 has no numbers between 1 and 1 - 1/256.
        gates = torch.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        gates = 2 * gates if self.neutral_start else gates  # (batch, queries, heads, head_dim or 1)
        gates = self.in_force(gates)
        return self.join(heads, gates), Routing(gates.mean(-1))

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        gating = Macs(queries * self.gate_proj.weight.numel(), 0)
        return super().macs(queries, keys, is_causal=is_causal) + gating
