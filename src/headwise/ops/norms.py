"""The norms of models, by the names that configurations and recipes give them."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

NormKind = Literal["layer", "rms"]


def norm_of(kind: NormKind, width: int, eps: float = 1e-5) -> nn.Module:
    """Returns a layer norm, or a norm by the root mean square, which has no mean and no shift.

        layer   (x - mean x) / √(var x + ε) · γ + β
        rms     x / √(mean x² + ε) · γ

    Zhang & Sennrich 2019, *Root Mean Square Layer Normalization*, https://arxiv.org/abs/1910.07467.

    >>> norm_of("rms", 8)
    RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """
    return RMSNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps)


class RMSNorm(nn.RMSNorm):
    """PyTorch's, with the output in the type of the input, as of all maps under autocast.

    PyTorch has a fused kernel only where input and weight are of one type.
    """

    def forward(self, x: Tensor) -> Tensor:
        """`(..., width)` to the same."""
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)
