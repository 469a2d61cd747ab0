"""Gated attention: a gate of the query's input scales what each head has read."""

from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from headwise.heads.ablation import HEADS
from headwise.heads.attention import AttentionInputs, MultiHeadAttention
from headwise.heads.system import Routing
from headwise.messages import check_choice
from headwise.ops.layers import at_least_float32


class GatedAttention(MultiHeadAttention):
    """Multi-head attention with a gate behind each head, before the output projection.

    Qiu et al. 2025, *Gated Attention for Large Language Models: Non-linearity, Sparsity, and
    Attention-Sink-Free*, https://arxiv.org/abs/2505.06708.

        oᵢ ← oᵢ ⊙ σ(x Vᵢ),  y = Σᵢ oᵢ Wᵢ

    x is the input of the query, so each position has gates of its own. Of the places that the paper
    tries, this is the best; there `"elementwise"` gates are slightly better.

    Args:
        gate: `"headwise"`, one number for a head; `"elementwise"`, one for each element of it; or
            `"static"`, ours, a learned number for each head that no input changes, which
            `headwise.fold_gates` can put into the output projection.
        gate_init: `"random"` draws V by Glorot's rule. With `"neutral"` V starts at zero and gates
            are 2σ(x Vᵢ), which is 1 there: the layer is standard attention until it is trained.
            So `as_head_gate` starts by default. Static gates start at 1 if neutral, and else at
            σ(0) = 1/2.
        embed_dim, num_heads, options: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is `(batch, queries, heads)`, the gate of each
        head, or the mean over its elements: between 0 and 1, or 2 after a neutral start, and no
        distribution. `gate_proj.weight` is `(heads or heads * head_dim, embed_dim)`; static gates
        have `gate_logits`, `(heads,)`, in its place.

    Example:
        >>> attention = GatedAttention(embed_dim=32, num_heads=4)
        >>> attention(torch.randn(2, 5, 32)).routing.weights.shape
        torch.Size([2, 5, 4])
        >>> neutral = GatedAttention(32, 4, gate_init="neutral")
        >>> bool((neutral(torch.randn(2, 5, 32)).routing.weights == 1).all())
        True
    """

    routing_parameters = ("gate_proj", "gate_logits")
    supported_ablations = ("uniform", *HEADS)  # others keep a sum, which gates do not have

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        gate: Literal["headwise", "elementwise", "static"] = "headwise",
        gate_init: Literal["random", "neutral"] = "random",
        **options: Any,
    ) -> None:
        check_choice("gate", gate, ("headwise", "elementwise", "static"))
        check_choice("gate_init", gate_init, ("random", "neutral"))
        super().__init__(embed_dim, num_heads, **options)
        self.elementwise, self.neutral_start = gate == "elementwise", gate_init == "neutral"
        if gate == "static":
            self.gate_logits = nn.Parameter(torch.empty(num_heads))
        else:
            num_gates = num_heads * self.head_dim if self.elementwise else num_heads
            self.gate_proj = nn.Linear(embed_dim, num_gates, bias=False)
        self._reset_gates(zero=self.neutral_start)

    @classmethod
    def as_head_gate(cls, embed_dim: int, num_heads: int, head_dim: int, **options: Any) -> Self:
        options = {"gate_init": "neutral", **options}
        return super().as_head_gate(embed_dim, num_heads, head_dim, **options)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_gates(zero=self.neutral_start)

    def _reset_gates(self, zero: bool) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith(self.routing_parameters):
                init = nn.init.zeros_ if zero or parameter.dim() == 1 else nn.init.xavier_uniform_
                init(parameter)

    def init_neutral(self) -> None:
        if not self.neutral_start:
            raise ValueError("gate_init is 'random', expected 'neutral', by which gates start at 1")
        self._reset_gates(zero=True)

    def init_from(self, attention: nn.Module, *, neutral: bool = True) -> None:
        self.copy_projections(attention)
        if neutral:
            self._reset_gates(zero=True)
            if not self.neutral_start:  # σ(0) = 1/2, which twice the output projection makes up for
                with torch.no_grad():
                    self.out_proj.weight.mul_(2)

    def combine(self, heads: Tensor, inputs: AttentionInputs, state: Any) -> tuple[Tensor, Routing]:
        gates = self._gates(inputs.query)  # (batch, queries, heads, head_dim or 1)
        means = gates.mean(-1)
        weights = self.ablate_weights(means)
        if weights is not means:  # an ablation: the elements of a head keep their proportions
            gates = gates * (weights / means.clamp(min=torch.finfo(means.dtype).tiny)).unsqueeze(-1)
        return self.scale_and_project(heads, gates), Routing(weights)

    def _gates(self, query: Tensor) -> Tensor:
        if hasattr(self, "gate_logits"):  # static gates
            logits = self.gate_logits.expand(*query.shape[:2], -1)
        else:
            logits = self.gate_proj(query)
        # Float32 at least: bf16 has no numbers between 1 and 1 - 1/256.
        gates = torch.sigmoid(at_least_float32(logits)).unflatten(-1, (self.num_heads, -1))
        return 2 * gates if self.neutral_start else gates

    def sees_other_positions(self, is_causal: bool) -> bool:
        return False

    def static_scales(self) -> Tensor | None:
        is_static = hasattr(self, "gate_logits")
        return self._gates(self.gate_logits.view(1, 1, -1))[0, 0] if is_static else None
