"""The measure of figure 2 of the TIM paper, on weights made by hand."""

import pytest
import torch

from headwise.tasks.image.metrics import specialisation


def halves(left, right, images=3, height=2, width=4):
    """Weights `(images, height, width, mechanisms)` that are constant on each side."""
    sides = [
        torch.tensor(side).expand(images, height, width // 2, len(side)) for side in (left, right)
    ]
    return torch.cat(sides, dim=2)


def naive(weights, ahead=0):
    """Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖², pixel by pixel; s of the pixel so far ahead."""
    width = weights.size(-2)
    pixels = [
        (int((x + ahead) % width >= width // 2), weights[i, y, x].double())
        for i in range(weights.size(0))
        for y in range(weights.size(1))
        for x in range(width)
        if y * width + x + ahead < weights.size(1) * width
    ]
    mean = sum(c for _, c in pixels) / len(pixels)
    total = sum(((c - mean) ** 2).sum() for _, c in pixels) / len(pixels)
    between = 0.0
    for side in (0, 1):
        own = [c for s, c in pixels if s == side]
        between += len(own) / len(pixels) * ((sum(own) / len(own) - mean) ** 2).sum()
    return float(between / total)


@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 3, 4), (5, 2, 7)])
@pytest.mark.parametrize("mechanisms", [2, 5])
def test_it_is_the_equation(shape, mechanisms):
    weights = torch.rand(*shape, mechanisms).softmax(-1)
    assert specialisation(weights) == pytest.approx(naive(weights), abs=1e-12)
    ahead = specialisation(weights, predicted=True)
    assert ahead == pytest.approx(naive(weights, ahead=1), abs=1e-12)


@pytest.mark.parametrize(("width", "height", "other"), [(16, 8, 0.584), (64, 32, 0.881)])
def test_a_perfect_division_by_one_side_is_not_one_by_the_other(width, height, other):
    by_read = halves([1.0, 0.0], [0.0, 1.0], height=height, width=width)
    assert specialisation(by_read) == pytest.approx(1.0)
    assert specialisation(by_read, predicted=True) == pytest.approx(other, abs=0.02)


def test_equal_weights_are_nothing_of_it():
    assert specialisation(torch.full((2, 2, 4, 3), 1 / 3)) == 0.0
    assert specialisation(torch.full((2, 2, 4, 3), 1 / 3).half()) == 0.0
