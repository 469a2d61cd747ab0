"""A measure of how far experts specialise in the halves of an image."""

import torch
from torch import Tensor


def specialisation(weights: Tensor, *, predicted: bool = False) -> float:
    """Returns the share of the variance of weights over pixels that the side of a pixel explains.

    Figure 2 of Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent
    Mechanisms*, https://arxiv.org/abs/2103.00336, plots "the relative variance in the
    mechanism-activation over the two sides of the image" and gives no equation. We read it as the
    correlation ratio: with c the weights of all experts at a pixel, c̄ their mean over all
    pixels and c̄_s over those on side s,

        Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖²

    It is 1 if the weights differ between the sides and are constant on each side. It is 0 if their
    means over the sides are equal. It does not say how far the weights are from uniform.

    The paper does not say either whether the pixel is the one that a position reads, or the one
    behind it, which it predicts. The two differ at the middle of a row and at its end: mechanisms
    that are perfectly divided in one alignment reach 0.584 in the other at a width of 16 and a
    height of 8, and 0.881 at 64 and 32.

    Args:
        weights: the weight of each expert where a pixel is read, `(..., height, width, experts)`.
            The left side is the left half of the width.
        predicted: whether the side is that of the pixel behind it. The last has none.

    Returns:
        A number in [0, 1]; 0 if the weights are the same at all pixels.

    Example:
        >>> left, right = [0.9, 0.1], [0.2, 0.8]
        >>> specialisation(torch.tensor([[left, right], [left, right]]))
        1.0
        >>> specialisation(torch.tensor([[left, right], [left, right]]), predicted=True)
        1.0
    """
    height, width = weights.shape[-3:-1]
    pixels = torch.arange(height * width, device=weights.device)
    if predicted:
        pixels = pixels[1:]
    rows = weights.double().flatten(-3, -2)[..., : len(pixels), :]  # (..., pixels, experts)
    right = pixels % width >= width // 2
    sides = [rows[..., which, :].flatten(0, -2) for which in (~right, right)]
    rows = rows.flatten(0, -2)
    mean = rows.mean(0)
    total = (rows - mean).square().sum()
    between = sum(len(side) * (side.mean(0) - mean).square().sum() for side in sides)
    # The variance of equal weights may differ from 0 by rounding.
    if total <= 1e-12 * rows.square().sum():
        return 0.0
    return float((between / total).clamp(max=1.0))
