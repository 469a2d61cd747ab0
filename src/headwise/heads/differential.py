"""Differential attention: each head subtracts a share of what a second query reads."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self, Unpack

from headwise.heads.ablations import HEADS, Changed, drawn_weights
from headwise.heads.attention import Inputs, Projected, Projections
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import Macs, Routing, Words


def without_subtraction(layer: Any) -> Changed:
    """Nothing is subtracted: standard attention with the first query of each head."""
    return Changed(torch.zeros_like)


def uniform(layer: Any) -> Changed:
    """All heads of a position subtract their mean share."""
    return Changed(lambda shares: shares.mean(-1, keepdim=True).expand_as(shares))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Changed:
    """The heads divide the sum of a position's shares at random, the same way in a layer."""
    (drawn,) = drawn_weights(layer.num_heads, 1, seed, index, count)
    return Changed(lambda shares: drawn.to(shares) * shares.sum(-1, keepdim=True))


class DifferentialAttention(MultiHeadAttention):
    """Multi-head attention whose heads read by the difference of two softmax maps.

    Ye et al. 2024, *Differential Transformer*, https://arxiv.org/abs/2410.05258, in the second
    version of 2026 of its authors' code, https://github.com/microsoft/unilm.

        a₂ᵢ = softmax(x W₂ᵢ^Q (k Wᵢ^K)ᵀ / √head_dim) v Wᵢ^V,  a₂ᵢ₊₁ likewise with W₂ᵢ₊₁^Q
        oᵢ  = a₂ᵢ − σ(λᵢ(x)) a₂ᵢ₊₁,  y = Σᵢ oᵢ Wᵢ

    x is the input of the query. Both queries of a head read the same keys and values, which a cache
    holds once. λ is a linear map without bias to one number for each head and position. The first
    version has a λ for each layer, made of four vectors and a start that depends on the depth, and
    a norm behind each head; the second has neither.

    Args:
        num_heads: number of heads, each with two queries.
        embed_dim, projections: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` is σ(λ(x)), `(batch, queries, heads)`: between 0
        and 1, and no distribution. Attention weights are those of the difference: they may be
        negative, and a row sums to 1 − σ(λᵢ(x)).

        The parameters are those of `MultiHeadAttention`, whose `q_proj` has the first queries;
        `second_q_proj` has the second ones, and `lambda_proj.weight` is `(heads, embed_dim)`.

    Example:
        >>> attention = DifferentialAttention(embed_dim=32, num_heads=4)
        >>> out = attention(torch.randn(2, 5, 32), need_weights=True)
        >>> torch.allclose(out.weights.sum(-1), 1 - out.routing.weights.transpose(1, 2))
        True
    """

    routing_parameters = ("lambda_proj",)
    heads_are_units = True
    ablations: ClassVar = {
        "without-subtraction": without_subtraction,
        "uniform": uniform,
        "random": random,
        **HEADS,
    }
    words = Words(
        unit="head",
        units="heads",
        decision="subtracted shares",
        measure="weight",
        entropy="says how evenly the heads of a position subtract. Shares are no distribution, so "
        "each is divided by the sum over the heads first: on the dashed line all heads subtract "
        "the same share. How much they subtract in all, it does not say.",
        share="is the mean share of its second map that a head subtracts, divided by the sum over "
        "the heads: how much it subtracts in comparison with the others, not by itself.",
    )

    def __init__(self, embed_dim: int, num_heads: int, **projections: Unpack[Projections]) -> None:
        super().__init__(embed_dim, num_heads, **projections)
        bias = self.q_proj.bias is not None
        self.second_q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=bias)
        self.lambda_proj = nn.Linear(embed_dim, num_heads, bias=False)
        self._reset_second()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "lambda_proj"):  # not yet while the base class is built
            self._reset_second()

    def _reset_second(self) -> None:
        nn.init.xavier_uniform_(self.second_q_proj.weight, gain=2**-0.5)  # as the first queries
        if self.second_q_proj.bias is not None:
            nn.init.zeros_(self.second_q_proj.bias)
        nn.init.xavier_uniform_(self.lambda_proj.weight)

    @torch.no_grad()
    def start_as_standard(self, attention: nn.Module) -> None:
        """Both queries of a head are those of the attention, and λ is 0.

        What is read is then halved, as σ(0) = 1/2, which twice the output projection makes up for:
        exactly, in binary numbers.
        """
        self.take_standard_weights(attention)
        self.second_q_proj.load_state_dict(self.q_proj.state_dict())
        nn.init.zeros_(self.lambda_proj.weight)
        self.out_proj.weight.mul_(2)

    @classmethod
    def over_heads(cls, *sizes: int, neutral: bool = True, **options: Any) -> Self:
        """Raises `ValueError`: the heads of another module have read already."""
        raise ValueError(
            f"{cls.__name__} reads with two queries for each head, so that it cannot go over the "
            f"heads of another module, which have read already; choose a system that scales heads"
        )

    def project(self, inputs: Inputs) -> Projected:
        """As queries it gives both of a head and its share, which `attend` takes apart."""
        projected = super().project(inputs)
        second = self._by_head(self.second_q_proj(inputs.query))
        logits = self.lambda_proj(inputs.query)  # (batch, queries, heads)
        # Float32 at least: bf16 has no numbers between 1 and 1 - 1/256.
        shares = torch.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        shares = self.in_force(shares)
        share = shares.transpose(1, 2).unsqueeze(-1).to(projected.q.dtype)
        q = torch.cat([projected.q, second.to(projected.q.dtype), share], dim=-1)
        return projected._replace(q=q, choice=shares)

    def placed(self, q: Tensor, inputs: Inputs) -> Tensor:
        if self.q_norm is None and inputs.rotary is None:
            return q
        first, second, share = q.split([self.head_dim, self.head_dim, 1], dim=-1)
        first, second = super().placed(first, inputs), super().placed(second, inputs)
        return torch.cat([first, second, share], dim=-1)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        first, second, share = q.split([self.head_dim, self.head_dim, 1], dim=-1)
        if q.device.type != "cpu":  # a GPU's kernels want rows that begin at multiples of 16 bytes
            first, second = first.contiguous(), second.contiguous()
        read = super().attend(first, k, v, mask, is_causal)
        return read - share * super().attend(second, k, v, mask, is_causal)

    def attention_weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        first, second, share = q.split([self.head_dim, self.head_dim, 1], dim=-1)
        weights = super().attention_weights(first, k, mask)
        return weights - share * super().attention_weights(second, k, mask)

    def combine(self, heads: Tensor, inputs: Inputs, choice: Tensor) -> tuple[Tensor, Routing]:
        output, _ = super().combine(heads, inputs, choice)
        return output, Routing(choice)

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        standard = super().macs(queries, keys, is_causal=is_causal)
        second = self.second_q_proj.weight.numel() + self.lambda_proj.weight.numel()
        return Macs(standard.linear + queries * second, 2 * standard.attention)
