"""What a layer of independent mechanisms is made of: attention, exchange and norm of each.

They map a representation that is divided into groups, each by parameters of its own. The groups lie
side by side in the last dimension, `(..., groups * width)`, as heads do before they are split: what
is not grouped (residual sums, dropout, attention by head) needs no reshaping.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.attention import Attention, Inputs, Projected
from headwise.heads.system import Macs, System
from headwise.ops.activations import ACTIVATIONS, Activation
from headwise.ops.norms import NormKind


class GroupedMaps(nn.Module):
    """The maps of queries, keys, values and output, each mechanism's by itself."""

    q_weight: nn.Parameter  # each (mechanisms, in, out)
    k_weight: nn.Parameter
    v_weight: nn.Parameter
    out_weight: nn.Parameter
    q_bias: nn.Parameter | None  # each (mechanisms, out)
    k_bias: nn.Parameter | None
    v_bias: nn.Parameter | None
    out_bias: nn.Parameter | None
    gain = 1.0  # of queries, keys and values

    def reset_parameters(self) -> None:
        """Draw them afresh."""
        for weight in (self.q_weight, self.k_weight, self.v_weight):
            glorot_uniform(weight, self.gain)
        glorot_uniform(self.out_weight)
        zeros(self.q_bias, self.k_bias, self.v_bias, self.out_bias)


class MechanismAttention(GroupedMaps, Attention):
    """Attention of each mechanism by itself: the heads of a mechanism see its channels only.

    The arguments are those of `MultiHeadAttention`, of all mechanisms together; values are as wide
    as keys. `num_mechanisms` divides `embed_dim`, both numbers of heads, and `kdim`.
    """

    gain = 2**-0.5  # as where nn.MultiheadAttention draws the three as one matrix

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_mechanisms: int,
        *,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        kdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        sizes = (head_dim, kdim, kdim, dropout, num_key_value_heads, False, norm_eps)
        super().__init__(embed_dim, num_heads, *sizes)
        if qk_norm:
            self.q_norm = HeadNorm(num_mechanisms, self.head_dim, norm_eps)
            self.k_norm = HeadNorm(num_mechanisms, self.head_dim, norm_eps)
        d_mech, d_key = embed_dim // num_mechanisms, self.kdim // num_mechanisms
        d_heads = num_heads * self.head_dim // num_mechanisms
        d_kept = self.num_key_value_heads * self.head_dim // num_mechanisms
        maps = {"q": (d_mech, d_heads), "k": (d_key, d_kept), "v": (d_key, d_kept)}
        add_maps(self, num_mechanisms, {**maps, "out": (d_heads, d_mech)}, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.reset_norms()

    def project(self, inputs: Inputs) -> Projected:
        q = self._by_head(grouped_linear(inputs.query, self.q_weight, self.q_bias))
        return Projected(q, *self._keys_and_values(inputs))

    def project_memory(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        k = grouped_linear(inputs.key, self.k_weight, self.k_bias)
        v = grouped_linear(inputs.value, self.v_weight, self.v_bias)
        return self._by_head(k), self._by_head(v)

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, None]:
        joined = heads.transpose(1, 2).flatten(2)  # (batch, queries, heads * head_dim)
        return grouped_linear(joined, self.out_weight, self.out_bias), None

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        linear = queries * (self.q_weight.numel() + self.out_weight.numel())
        linear += keys * (self.k_weight.numel() + self.v_weight.numel())
        return Macs(linear, 2 * queries * keys * self.num_heads * self.head_dim)


class MechanismExchange(GroupedMaps):
    """Attention over the mechanisms of one position, every position by itself."""

    is_transposed = System.is_transposed

    def __init__(
        self,
        num_mechanisms: int,
        mechanism_dim: int,
        num_heads: int,
        head_dim: int,
        dropout: float,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.num_mechanisms = num_mechanisms
        self.num_heads = num_heads
        self.dropout = dropout
        maps = dict.fromkeys(("q", "k", "v"), (mechanism_dim, num_heads * head_dim))
        maps["out"] = (num_heads * head_dim, mechanism_dim)
        add_maps(self, num_mechanisms, maps, bias)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, time, embed_dim)` to the same."""
        # The three are so narrow that one product of all takes less time than three.
        packed = torch.cat([self.q_weight, self.k_weight, self.v_weight], dim=2)
        biases: list[Tensor] = [b for b in (self.q_bias, self.k_bias, self.v_bias) if b is not None]
        bias = torch.cat(biases, dim=1) if biases else None
        by_head = (self.num_mechanisms, 3, self.num_heads, -1)
        projected = grouped_linear(x, packed, bias).unflatten(-1, by_head)
        q, k, v = projected.unbind(-3)  # each (batch, time, mechanisms, heads, head_dim)
        read = attention_between_groups(q, k, v, self.dropout if self.training else 0.0)
        return grouped_linear(read.flatten(-3), self.out_weight, self.out_bias)

    def macs(self, positions: int) -> Macs:
        """Multiply-accumulates over that many positions."""
        maps = (self.q_weight, self.k_weight, self.v_weight, self.out_weight)
        weights = sum(weight.numel() for weight in maps)
        pairs = self.num_mechanisms**2
        return Macs(positions * weights, 2 * positions * pairs * self.q_weight.size(-1))


class HeadNorm(nn.Module):
    """RMS norm of each head, scaled by numbers of its mechanism: `(batch, heads, time, width)`."""

    def __init__(self, num_mechanisms: int, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_mechanisms, width))
        self.eps = eps

    def reset_parameters(self) -> None:
        """Sets the scale to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, heads, time, width)` to the same."""
        scale = self.weight.repeat_interleave(x.size(1) // self.weight.size(0), dim=0)
        return F.rms_norm(x, x.shape[-1:], eps=self.eps) * scale.unsqueeze(1).to(x.dtype)


class MechanismNorm(nn.Module):
    """Norm of each mechanism by itself, a layer norm or one by the root mean square."""

    def __init__(
        self, num_mechanisms: int, mechanism_dim: int, kind: NormKind = "layer", eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_mechanisms, mechanism_dim))
        shift = torch.empty(num_mechanisms, mechanism_dim) if kind == "layer" else None
        self.bias = None if shift is None else nn.Parameter(shift)
        self.eps = eps
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the scale to 1 and the shift to 0."""
        nn.init.ones_(self.weight)
        zeros(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, time, embed_dim)` to the same."""
        if self.bias is None:
            return grouped_rms_norm(x, self.weight, self.eps)
        return grouped_layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"num_mechanisms={self.weight.size(0)}, mechanism_dim={self.weight.size(1)}"


def add_maps(
    module: nn.Module, groups: int, maps: Mapping[str, tuple[int, int]], bias: bool
) -> None:
    """Makes the parameters `NAME_weight`, `(groups, in, out)`, and `NAME_bias` of grouped maps."""
    for name, sizes in maps.items():
        module.register_parameter(f"{name}_weight", nn.Parameter(torch.empty(groups, *sizes)))
    for name, (_, width) in maps.items():
        shift = nn.Parameter(torch.empty(groups, width)) if bias else None
        module.register_parameter(f"{name}_bias", shift)


def zeros(*biases: nn.Parameter | None) -> None:
    """Sets those that there are to 0."""
    for bias in biases:
        if bias is not None:
            nn.init.zeros_(bias)


def glorot_uniform(weight: Tensor, gain: float = 1.0) -> None:
    """Draws the maps `(groups, in, out)` at random, each as if it were alone, by Glorot's bound."""
    bound = gain * (6 / (weight.size(1) + weight.size(2))) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


_FEW_ROWS = 256  # up to which one operator of many parts takes less time than many


# --- numerics ---------------------------------------------------------------------------------


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map of each group: `y_j = x_j W_j + b_j` (the paper's GroupLinear, without b).

    All groups are one batched product, which reads the groups where they lie: from x
    `(..., groups * in)` by W `(groups, in, out)` and b `(groups, out)` to `(..., groups * out)`.

    >>> x, weight = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([[[1.0], [1.0]], [[1.0], [0]]])
    >>> grouped_linear(x, weight)
    tensor([3., 3.])
    """
    groups, _, out_dim = weight.shape
    y = _mapped(_by_group(x, groups), weight, bias)  # (groups, rows, out)
    return y.transpose(0, 1).reshape(*x.shape[:-1], groups * out_dim)


def grouped_feed_forward(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    dropout: float = 0.0,
    activation: Activation = "relu",
) -> Tensor:
    """A feed-forward map of each group: `y_j = f(x_j U_j + b_j) D_j + c_j`.

    From x `(..., groups * in)` by U `(groups, in, hidden)` and D `(groups, hidden, out)` to
    `(..., groups * out)`. The hidden layer, the widest tensor of a layer, stays divided by group.
    """
    groups = up.size(0)
    hidden = ACTIVATIONS[activation](_mapped(_by_group(x, groups), up, up_bias))
    y = _mapped(F.dropout(hidden, dropout), down, down_bias)  # (groups, rows, out)
    return y.transpose(0, 1).reshape(*x.shape[:-1], groups * y.size(-1))


def grouped_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm of each group by itself: `y_j = (x_j - mean x_j) / √(var x_j + ε) · γ_j + β_j`.

    Group by group, which for two or four groups takes half the time of PyTorch's `group_norm`. γ
    and β are `(groups, width)`.
    """
    groups, width = weight.shape
    if not torch.is_grad_enabled():  # two operators, which round otherwise
        normed = F.layer_norm(x.unflatten(-1, (groups, width)), (width,), eps=eps)
        return torch.addcmul(bias, normed, weight).to(x.dtype).flatten(-2)
    parts = zip(x.chunk(groups, -1), weight.unbind(0), bias.unbind(0), strict=True)
    return torch.cat([F.layer_norm(part, (width,), w, b, eps) for part, w, b in parts], -1)


def grouped_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm of each group by its root mean square: `y_j = x_j / √(mean x_j² + ε) · γ_j`."""
    groups, width = weight.shape
    parts = zip(x.chunk(groups, -1), weight.to(x.dtype).unbind(0), strict=True)
    return torch.cat([F.rms_norm(part, (width,), w, eps) for part, w in parts], -1)


def attention_between_groups(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Attention whose positions are the groups, in each row by itself.

        o_i = Σ_j softmax_j(q_i k_jᵀ / √head_dim) v_j,  for groups i and j and each head

    The products are tiny and many. As plain batched products they take a third of the time of
    PyTorch's attention kernel, but for a few rows, as in decoding step by step. All are
    `(..., groups, heads, head_dim)`.
    """
    if not torch.is_grad_enabled() and q[..., 0, 0, 0].numel() <= _FEW_ROWS:
        shape = v.shape
        q, k, v = (x.reshape(-1, *x.shape[-3:]).transpose(1, 2) for x in (q, k, v))
        read = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return read.transpose(1, 2).reshape(shape)
    logits = torch.einsum("...ihd,...jhd->...hij", q / math.sqrt(q.size(-1)), k)
    weights = F.dropout(logits.softmax(-1), dropout)  # (..., heads, groups, groups)
    return torch.einsum("...hij,...jhd->...ihd", weights.to(v.dtype), v)


def _mapped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rows by group, `(groups, rows, in)`, to `(groups, rows, out)`."""
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """`(..., groups * width)` to `(groups, rows, width)`, a view if `x` is contiguous."""
    return x.reshape(-1, groups, x.size(-1) // groups).transpose(0, 1)
