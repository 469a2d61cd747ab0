"""The mixture of MAE's experts as one scale for each head, and the draw of a single expert."""

from itertools import combinations

import torch
from torch import Tensor

from headwise.ops.precision import without_autocast


def left_out_heads(num_heads: int, dropped_heads: int) -> Tensor:
    """`(experts, heads)`, 1 where the expert leaves the head out, in the order of
    `itertools.combinations`.

    >>> left_out_heads(3, 1).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    experts = torch.tensor(list(combinations(range(num_heads), dropped_heads)))
    return torch.zeros(len(experts), num_heads).scatter_(1, experts, 1.0)


def head_scales(gates: Tensor, left_out: Tensor) -> Tensor:
    """How much each head counts in a mixture of experts that each leave t of h heads out.

        aⱼ = h/(h−t) · (1 − Σ_{S∋j} g_S)

    From gates `(..., experts)` to `(..., heads)`. With it, Σ_S g_S · h/(h−t) Σ_{j∉S} oⱼWⱼ of the
    paper's equations 5 and 6 is Σⱼ aⱼ oⱼWⱼ: no expert is computed by itself.
    """
    # h/(h−t) = 1/(1 − t/h). So divided, uniform gates give 1 without rounding where t is 1.
    with without_autocast(gates):
        return (1 - gates @ left_out) / (1 - left_out.mean(0))


def draw_expert(gates: Tensor, noise: Tensor) -> Tensor:
    """One expert per distribution `(..., experts)`, one-hot, each as often as its gate says.

        argmax_S g_S / e_S,  e_S = −log(1 − u_S) exponentially distributed

    The noise is u, uniform in [0, 1). Distributions that share it draw the same expert unless their
    gates differ enough to decide otherwise.

    >>> draw_expert(torch.tensor([[0.2, 0.8], [0.7, 0.3]]), torch.tensor([0.5, 0.4]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    # A least e keeps an expert of gate 0 from 0/0.
    e = -torch.log1p(-noise.to(gates.dtype)).clamp(max=-torch.finfo(gates.dtype).tiny)
    drawn = (gates / e).argmax(-1, keepdim=True)
    return torch.zeros_like(gates).scatter_(-1, drawn, 1.0)
