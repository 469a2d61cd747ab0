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
