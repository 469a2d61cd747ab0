"""How far mechanisms specialise over the halves of an image."""

import torch
from torch import Tensor


def specialisation(weights: Tensor) -> float:
    """The share of the weights' variance over pixels that the side they are on explains.

    Figure 2 of Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent
    Mechanisms*, https://arxiv.org/abs/2103.00336, plots "the relative variance in the
    mechanism-activation over the two sides of the image" and gives no equation. We read it as the
    correlation ratio: with c the weights of all mechanisms at a pixel, c̄ their mean over all
    pixels and c̄_s over those on side s,

        Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖²

    It is 1 if each side has weights of its own, the same at all of its pixels, and 0 if the sides
    do not differ on average. It says nothing of how far the weights are from uniform.

    Args:
        weights: how much each mechanism counts, `(..., width, mechanisms)`; the left side is the
            left half of the width.

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
    pixels = torch.cat(sides)  # (pixels, mechanisms)
    mean = pixels.mean(0)
    total = (pixels - mean).square().sum()
    between = sum(len(side) * (side.mean(0) - mean).square().sum() for side in sides)
    # What rounding leaves of weights that are all alike is no variance.
    if total <= 1e-12 * pixels.square().sum():
        return 0.0
    return float((between / total).clamp(max=1.0))
