"""Differential attention: each head subtracts a share of the output of a second query."""

from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.ablation import HEADS
from headwise.heads.attention import AttentionInputs, MultiHeadAttention, draw_linear
from headwise.heads.system import Routing
from headwise.ops.layers import at_least_float32


class DifferentialAttention(MultiHeadAttention):
    """Multi-head attention whose heads read by the difference of two softmax maps.

    Ye et al. 2024, *Differential Transformer*, https://arxiv.org/abs/2410.05258, in the second
    version of 2026 of its authors' code, https://github.com/microsoft/unilm.

        a₂ᵢ = softmax(x W₂ᵢ^Q (k Wᵢ^K)ᵀ / √head_dim) v Wᵢ^V,  a₂ᵢ₊₁ likewise with W₂ᵢ₊₁^Q
        oᵢ  = a₂ᵢ - σ(λᵢ(x)) a₂ᵢ₊₁,  y = Σᵢ oᵢ Wᵢ

    x is the input of the query. Both queries of a head read the same keys and values, which a cache
    holds once. λ is a linear map without bias to one number for each head and position. The first
    version has a λ for each layer, made of four vectors and a start that depends on the depth, and
    a norm behind each head; the second has neither.

    Args:
        num_heads: number of heads, each with two queries: of `q_proj` and of `second_q_proj`.
        embed_dim, options: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is 1 - σ(λ(x)), `(batch, queries, heads)`: what
        is left of a head's attention, between 0 and 1, and no distribution. Attention weights are
        those of the difference: they may be negative, and a row sums to 1 - σ(λᵢ(x)).
        `lambda_proj.weight` is `(heads, embed_dim)`.

    Example:
        >>> attention = DifferentialAttention(embed_dim=32, num_heads=4)
        >>> out = attention(torch.randn(2, 5, 32), need_weights=True)
        >>> torch.allclose(out.weights.sum(-1), out.routing.weights.transpose(1, 2))
        True
    """

    routing_parameters = ("lambda_proj",)
    supported_ablations = ("uniform", *HEADS)  # as of gates

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, **options)
        bias = self.q_proj.bias is not None
        self.second_q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=bias)
        self.lambda_proj = nn.Linear(embed_dim, num_heads, bias=False)
        self._reset_second()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_second()

    def _reset_second(self) -> None:
        draw_linear(self.second_q_proj, gain=2**-0.5)  # as the first queries
        draw_linear(self.lambda_proj)

    def init_from(self, attention: nn.Module, *, neutral: bool = True) -> None:
        self.copy_projections(attention)
        if neutral:
            # Both queries are the same, and λ is 0: twice the output projection makes up for what
            # is read, halved as σ(0) = 1/2, and exactly so in binary numbers.
            self.second_q_proj.load_state_dict(self.q_proj.state_dict())
            nn.init.zeros_(self.lambda_proj.weight)
            with torch.no_grad():
                self.out_proj.weight.mul_(2)

    def project(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Puts both queries of a head and its share side by side; `attend` separates them."""
        first, k, v, _ = super().project(inputs)
        second = self.by_head(self.second_q_proj(inputs.query))
        second = self.norm_and_rotate(second, self.q_norm, inputs.rotary)
        logits = self.lambda_proj(inputs.query)  # (batch, queries, heads)
        # Float32 at least: bf16 has no numbers between 1 and 1 - 1/256.
        weights = 1 - torch.sigmoid(at_least_float32(logits))
        weights = self.ablate_weights(weights)
        parts = (first, second, (1 - weights).transpose(1, 2).unsqueeze(-1))
        return torch.cat([part.to(first.dtype) for part in parts], dim=-1), k, v, weights

    def _split(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second, share = q.split([self.head_dim, self.head_dim, 1], dim=-1)
        # A GPU's kernels want rows that begin at multiples of 16 bytes.
        return first.contiguous(), second.contiguous(), share

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        first, second, share = self._split(q)
        heads = super().attend(first, k, v, mask, is_causal)
        return heads - share * super().attend(second, k, v, mask, is_causal)

    def attention_weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        first, second, share = self._split(q)
        weights = super().attention_weights(first, k, mask)
        return weights - share * super().attention_weights(second, k, mask)

    def combine(
        self, heads: Tensor, inputs: AttentionInputs, state: Tensor
    ) -> tuple[Tensor, Routing]:
        return self.scale_and_project(heads), Routing(state)
