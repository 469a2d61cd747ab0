import warnings

import pytest
import torch

from headwise.ops.norms import norm_of


def test_norms_are_their_formulas():
    x = torch.randn(3, 5, dtype=torch.float64)
    layer, rms = (norm_of(kind, 5, 0.1).double() for kind in ("layer", "rms"))
    for parameter in (*layer.parameters(), *rms.parameters()):
        torch.nn.init.normal_(parameter)
    for row, by_mean, by_square in zip(x, layer(x), rms(x), strict=True):
        mean, square = sum(row) / 5, sum(row * row) / 5
        variance = sum((row - mean) ** 2) / 5
        expected = (row - mean) / (variance + 0.1) ** 0.5 * layer.weight + layer.bias
        torch.testing.assert_close(by_mean, expected)
        torch.testing.assert_close(by_square, row / (square + 0.1) ** 0.5 * rms.weight)
    assert [name for name, _ in rms.named_parameters()] == ["weight"]


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_under_autocast_the_output_has_few_digits_less(kind):
    norm, x = norm_of(kind, 64), torch.randn(3, 64)
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = norm(x.bfloat16())
    torch.testing.assert_close(got.float(), norm(x), rtol=0.02, atol=0.02)


def test_a_root_mean_square_keeps_the_type_of_its_input():
    x = torch.randn(3, 8).bfloat16()
    assert norm_of("rms", 8)(x).dtype == norm_of("rms", 8).bfloat16()(x).dtype == x.dtype
