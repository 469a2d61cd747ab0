"""A measure of how far experts specialise in the halves of an image."""

import torch
from torch import Tensor


def specialisation(weights: Tensor) -> float:
    """Returns the share of the variance of weights over pixels that the side of a pixel explains.

    Figure 2 of Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent
    Mechanisms*, https://arxiv.org/abs/2103.00336, plots "the relative variance in the
    mechanism-activation over the two sides of the image" and gives no equation. We read it as the
    correlation ratio: with c the weights of all experts at a pixel, c̄ their mean over all
    pixels and c̄_s over those on side s,

        Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖²

    It is 1 if the weights differ between the sides and are constant on each side. It is 0 if their
    means over the sides are equal. It does not say how far the weights are
    from uniform.

    Args:
        weights: the weight of each expert at each pixel, `(..., width, experts)`. The left side is
            the left half of the width.

    Returns:
        A number in [0, 1]; 0 if the weights are the same at all pixels.

    Example:
        >>> left, right = [0.9, 0.1], [0.2, 0.8]
        >>> specialisation(torch.tensor([[left, right], [left, right]]))
        1.0
    """
    weights = weights.double()
    middle = weights.size(-2) // 2
    sides = [side.flatten(0, -2) for side in (weights[..., :middle, :], weights[..., middle:, :])]
    pixels = torch.cat(sides)  # (pixels, experts)
    mean = pixels.mean(0)
    total = (pixels - mean).square().sum()
    between = sum(len(side) * (side.mean(0) - mean).square().sum() for side in sides)
    # The variance of equal weights may differ from 0 by rounding.
    if total <= 1e-12 * pixels.square().sum():
        return 0.0
    return float((between / total).clamp(max=1.0))
