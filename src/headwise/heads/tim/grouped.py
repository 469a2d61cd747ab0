"""Maps of a representation that is divided into groups, each by parameters of its own.

The groups lie side by side in the last dimension, `(..., groups * width)`, as heads do before they
are split: what is not grouped (residual sums, dropout, attention by head) needs no reshaping.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.ops.activations import ACTIVATIONS, Activation


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


def grouped_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm of each group by itself: `y_j = (x_j - mean x_j) / √(var x_j + ε) · γ_j + β_j`.

    Group by group, which for two or four groups takes half the time of PyTorch's `group_norm`. γ
    and β are `(groups, width)`.
    """
    groups, width = weight.shape
    parts = zip(x.chunk(groups, -1), weight.unbind(0), bias.unbind(0), strict=True)
    return torch.cat([F.layer_norm(part, (width,), w, b) for part, w, b in parts], -1)


def attention_between_groups(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Attention whose positions are the groups, in each row by itself.

        o_i = Σ_j softmax_j(q_i k_jᵀ / √head_dim) v_j,  for groups i and j and each head

    The products are tiny and many. As plain batched products they take a third of the time of
    PyTorch's attention kernel. All are `(..., groups, heads, head_dim)`.
    """
    logits = torch.einsum("...ihd,...jhd->...hij", q / math.sqrt(q.size(-1)), k)
    weights = F.dropout(logits.softmax(-1), dropout)  # (..., heads, groups, groups)
    return torch.einsum("...hij,...jhd->...ihd", weights.to(v.dtype), v)


def _mapped(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rows by group, `(groups, rows, in)`, to `(groups, rows, out)`."""
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """`(..., groups * width)` to `(groups, rows, width)`, a view if `x` is contiguous."""
    return x.reshape(-1, groups, x.size(-1) // groups).transpose(0, 1)
