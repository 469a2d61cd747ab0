"""Gated attention: a gate of the query's input scales what each head has read."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from typing_extensions import Unpack

from headwise.heads.ablations import HEADS, Changed, drawn_weights, largest
from headwise.heads.attention import Inputs, Projections
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import Macs, Routing, Words
from headwise.ops.bounds import checked

_HEADWISE: Mapping[str, Any] = {
    "gate": "headwise",
    "gate_activation": "sigmoid",
    "gate_inputs": "all",
    "gate_bias": False,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gated-attention-elementwise": {**_HEADWISE, "gate": "elementwise"},
    "gated-attention-headwise": _HEADWISE,
    "quantizable-transformers": {**_HEADWISE, "gate_inputs": "head", "gate_bias": True},
    "quantizable-transformers-all-heads": {**_HEADWISE, "gate_bias": True},
    "step-3.5-flash": _HEADWISE,
}


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
    equation; in their code it has one where the query projection has. V is drawn by Glorot's rule,
    and a bias starts at zero. The paper trains with gates from the start on, and has none that
    start at 1.

    Other papers have other gates behind the heads. `presets` has the options that they print:

    - `gated-attention-elementwise` and `gated-attention-headwise`: the paper above.
    - `quantizable-transformers`: Bondarenko et al. 2023, *Quantizable Transformers: Removing
      Outliers by Helping Attention Heads Do Nothing*, https://arxiv.org/abs/2306.12929, equations 5
      to 7: a gate for each head, of the head's share of x, with a bias.
    - `quantizable-transformers-all-heads`: the same, table 4: each gate of all of x.
    - `step-3.5-flash`: StepFun 2026, *Step 3.5 Flash: Open Frontier-Level Intelligence with 11B
      Active Parameters*, https://arxiv.org/abs/2602.10604, equation 5: a gate for each head.

    Args:
        gate: `"headwise"`, one gate for a head; or `"elementwise"`, one for each element of it.
        gate_activation: `"sigmoid"`; `"doubled-sigmoid"`, 2σ, as where Quantizable Transformers are
            fine-tuned (appendix B.6); or `"softplus"`, log(1 + eˣ), which has no upper bound.
        gate_inputs: what of x the gates are made of: `"all"`; a number m, its first m entries; or
            `"head"`, for each head its own share of x, the i-th of `num_heads` equal ones. With 0,
            which needs `gate_bias`, a gate is a number that is learned and the same for all x;
            `headwise.fold_gates` puts such gates into the output projection.
        gate_bias: whether the map V has a bias.
        gate_start: what the gates are before training. `"random"`: those of a map that is drawn at
            random, as in the papers. `"neutral"`: V starts at zero, and the activation is one that
            is 1 there, so that the layer is standard attention until it is trained; for models that
            have been trained without gates. Both sigmoids are then 2σ(x Vᵢ), and softplus is
            log₂(1 + 2ˣ). `from_attention` starts either so, and `over_heads` chooses it unless it
            is told otherwise.
        embed_dim, num_heads, projections: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is `(batch, queries, heads)`, the gate of each
        head, or the mean over its elements: above 0, and of a sigmoid below 1, or 2 if it is
        doubled or starts neutral. They are no distribution.

        The parameters are those of `MultiHeadAttention`, and `gate_proj.weight`, `(heads, inputs)`
        or `(heads * head_dim, inputs)`, where inputs are `embed_dim`, m, or `embed_dim / heads`;
        with `gate_bias` also `gate_proj.bias`.

    Raises:
        ValueError: `gate_inputs` that x has not, or cannot be divided into; sizes that do not fit
            together.

    Example:
        >>> attention = GatedAttention(embed_dim=32, num_heads=4)
        >>> attention(torch.randn(2, 5, 32)).routing.weights.shape
        torch.Size([2, 5, 4])
        >>> neutral = GatedAttention(32, 4, gate_start="neutral")
        >>> neutral(torch.randn(2, 5, 32)).routing.weights.unique()
        tensor([1.], grad_fn=<Unique2Backward0>)
        >>> GatedAttention(32, 4, **GatedAttention.presets["quantizable-transformers"]).gate_proj
        Linear(in_features=8, out_features=4, bias=True)
    """

    routing_parameters = ("gate_proj",)
    heads_are_units = True
    shown = (
        *(*MultiHeadAttention.shown, "elementwise", "neutral_start"),
        *("gate_activation", "gate_inputs"),
    )
    presets = PRESETS
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
        gate_activation: Literal["sigmoid", "doubled-sigmoid", "softplus"] = "sigmoid",
        gate_inputs: int | Literal["all", "head"] = "all",
        gate_bias: bool = False,
        gate_start: Literal["random", "neutral"] = "random",
        **projections: Unpack[Projections],
    ) -> None:
        super().__init__(embed_dim, num_heads, **projections)
        self.elementwise = gate == "elementwise"
        self.neutral_start = gate_start == "neutral"
        self.gate_activation = gate_activation
        self.gate_inputs = gate_inputs
        gates = num_heads * self.head_dim if self.elementwise else num_heads
        width = _inputs_of_a_gate(gate_inputs, embed_dim, num_heads)
        if not width and not gate_bias:
            raise ValueError(
                "gate_inputs is 0 and gate_bias False, expected gate_bias=True: gates of no input "
                "have nothing else to learn"
            )
        self.gate_proj = nn.Linear(max(width, 1), gates, bias=gate_bias)
        if not width:  # PyTorch warns if it is to draw a weight that has no entries
            self.gate_proj.in_features = 0
            self.gate_proj.weight = nn.Parameter(torch.empty(gates, 0))
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
        self._fill_gates(draw)

    def _fill_gates(self, draw: Callable[[Tensor], object]) -> None:
        draw(self.gate_proj.weight)
        if self.gate_proj.bias is not None:
            nn.init.zeros_(self.gate_proj.bias)

    @torch.no_grad()
    def start_as_standard(self, attention: nn.Module) -> None:
        """Takes its weights; the gates' map starts at zero, so that all gates are equal.

        After a neutral start they are 1. Otherwise they are what the activation is at 0, such as
        σ(0) = 1/2, which a division of the output projection makes up for.
        """
        self.take_standard_weights(attention)
        self._fill_gates(nn.init.zeros_)
        self.out_proj.weight.div_(self._at_zero())

    def start_neutral(self) -> None:
        """The gates' map starts at zero, so that all gates are 1.

        Raises:
            ValueError: the activation is not 1 at 0.
        """
        if self._at_zero() != 1:
            raise ValueError(
                f"gate_start is 'random', expected 'neutral', by which gates start at 1, and not "
                f"at {self._at_zero():.2g}, where a {self.gate_activation} is at 0"
            )
        self._fill_gates(nn.init.zeros_)

    def _at_zero(self) -> float:
        """What the activation is at 0."""
        if self.neutral_start or self.gate_activation == "doubled-sigmoid":
            return 1.0
        return math.log(2) if self.gate_activation == "softplus" else 0.5

    def _activated(self, logits: Tensor) -> Tensor:
        if self.gate_activation == "softplus":
            return softplus(logits, beta=math.log(2) if self.neutral_start else 1.0)
        gates = torch.sigmoid(logits)
        return 2 * gates if self._at_zero() == 1 else gates

    def _logits(self, query: Tensor) -> Tensor:
        """From `(batch, queries, embed_dim)` to `(batch, queries, heads, head_dim or 1)`."""
        if self.gate_inputs == "head":
            # Every head's map of every share, of which its own counts: no dearer than all of x.
            shares = query.unflatten(-1, (self.num_heads, -1))
            logits = self.gate_proj(shares).unflatten(-1, (self.num_heads, -1))
            return logits.diagonal(dim1=-3, dim2=-2).transpose(-1, -2)
        seen = query if self.gate_inputs == "all" else query[..., : self.gate_inputs]
        return self.gate_proj(seen).unflatten(-1, (self.num_heads, -1))

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        gates = self.in_force(self._gates(inputs.query))  # (batch, queries, heads, head_dim or 1)
        return self.join(heads, gates), Routing(gates.mean(-1))

    def _gates(self, query: Tensor) -> Tensor:
        logits = self._logits(query)
        # Float32 at least: bf16 has no numbers between 1 and 1 - 1/256.
        return self._activated(logits.to(torch.promote_types(logits.dtype, torch.float32)))

    def sees_other_positions(self, is_causal: bool) -> bool:
        return False

    def static_scales(self) -> Tensor | None:
        weight = self.gate_proj.weight
        return None if weight.any() else self._gates(weight.new_zeros(self.embed_dim))

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        shares = self.num_heads if self.gate_inputs == "head" else 1
        gating = Macs(queries * shares * self.gate_proj.weight.numel(), 0)
        return super().macs(queries, keys, is_causal=is_causal) + gating


def _inputs_of_a_gate(gate_inputs: Any, embed_dim: int, num_heads: int) -> int:
    """How many entries of the input a gate is made of."""
    if gate_inputs == "all":
        return embed_dim
    if gate_inputs == "head" and embed_dim % num_heads == 0:
        return embed_dim // num_heads
    if type(gate_inputs) is int and 0 <= gate_inputs <= embed_dim:
        return gate_inputs
    raise ValueError(
        f"gate_inputs is {gate_inputs!r}, expected 'all', a number from 0 to embed_dim = "
        f"{embed_dim}, or 'head' where embed_dim is a multiple of num_heads = {num_heads}"
    )
