"""Standard multi-head attention, from which systems derive that keep its projections."""

from typing import Any

from torch import Tensor, nn

from headwise.heads.ablations import HEADS
from headwise.heads.attention import Inputs
from headwise.heads.over_heads import OverHeads
from headwise.heads.system import Macs, Routing


class MultiHeadAttention(OverHeads):
    """Standard multi-head attention.

    Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.

        oᵢ = softmax(q Wᵢ^Q (k Wᵢ^K)ᵀ / √head_dim) v Wᵢ^V
        y  = [o₁; …; o_H] W^O = Σᵢ oᵢ Wᵢ

    It takes the place of `nn.MultiheadAttention(..., batch_first=True)`, also within PyTorch's own
    layers, and loads its state dict, by itself or within that of a model. So do subclasses; their
    further parameters are then missing, which `strict=False` allows, while `from_attention` knows
    how they start.

    Args:
        embed_dim: width of queries and of the output.
        num_heads: number of heads.
        head_dim: width of a head; `embed_dim // num_heads` if not given.
        kdim, vdim: width of keys and values; `embed_dim` if not given.
        dropout: probability with which an attention weight is dropped in training.
        bias: whether the four projections have a bias.

    Shape:
        query `(batch, queries, embed_dim)`; key `(batch, keys, kdim)`; value
        `(batch, keys, vdim)`; output `(batch, queries, embed_dim)`.

    Raises:
        ValueError: sizes that do not fit together; the message names the argument.

    Example:
        >>> import torch
        >>> attention = MultiHeadAttention(embed_dim=32, num_heads=4)
        >>> x = torch.randn(2, 5, 32)
        >>> attention(x, is_causal=True).output.shape
        torch.Size([2, 5, 32])
        >>> attention(x, need_weights=True).weights.shape
        torch.Size([2, 4, 5, 5])
    """

    output_parameters = ("out_proj",)
    ablations = HEADS

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(embed_dim, num_heads, head_dim, kdim, vdim, dropout)
        self.dense_projections(bias)
        self.out_proj = nn.Linear(self.num_heads * self.head_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections afresh, as `nn.MultiheadAttention` does (Glorot uniform)."""
        self.reset_projections()
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def start_neutral(self) -> None:
        """Gives the parameters that standard attention lacks the values that change nothing."""
        if type(self) is not MultiHeadAttention:
            raise self._cannot_start_as_standard()

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing | None]:
        return self.join(heads), None

    def join(self, heads: Tensor, scales: Tensor | None = None) -> Tensor:
        """Σᵢ aᵢ oᵢ Wᵢ, with scales a, `(batch, 1 or queries, heads, 1 or head_dim)`; 1 if None."""
        joined = heads.transpose(1, 2)  # (batch, queries, heads, head_dim)
        joined = joined if scales is None else joined * scales.to(heads.dtype)
        return self.out_proj(joined.flatten(2))

    def ablation_ranges(self) -> dict[str, range]:
        # A subclass may declare others, whose options are its own.
        return {"head": range(self.num_heads)} if "without-head" in self.ablations else {}

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        output = Macs(queries * self.out_proj.weight.numel(), 0)
        return super().macs(queries, keys, is_causal=is_causal) + output
