"""A function with a fast and a plain way: which is taken when, and that derivatives are right."""

import pytest
import torch
from torch.func import grad, hessian, jvp, vmap

from headwise.ops.twins import compute


class Cubes:
    """x³ · scale, and a further output that has no gradient; it notes how it was computed."""

    def __init__(self):
        self.ways = []

    def plain(self, x, scale):
        self.ways.append("plain")
        return x**3 * scale, x.detach().sum(-1)

    def fast(self, x, scale):
        self.ways.append("fast")
        return x.detach() ** 3 * scale.detach(), x.detach().sum(-1)

    def gradients(self, grad, x, scale):
        self.ways.append("gradients")
        return 3 * x.detach() ** 2 * scale.detach() * grad, (x.detach() ** 3 * grad).sum()


@pytest.fixture
def cubes():
    return Cubes()


def test_training_is_fast(cubes):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    result, further = compute(cubes, x, scale)
    assert further.item() == 3 and not further.requires_grad
    result.sum().backward()
    assert x.grad.tolist() == [6, 24] and scale.grad.item() == 9
    assert cubes.ways == ["fast", "gradients"]


def test_second_derivatives_and_those_of_transforms(cubes):
    x, scale = torch.randn(3, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    inputs = x.requires_grad_(), scale.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda *xs: compute(cubes, *xs)[0], inputs)
    x, scale = x.detach(), scale.detach()
    _, slope = jvp(lambda x: compute(cubes, x, scale)[0], (x,), (torch.ones_like(x),))
    torch.testing.assert_close(slope, 3 * x**2 * scale)
    got = hessian(lambda x: compute(cubes, x, scale)[0].sum())(x)
    torch.testing.assert_close(got, torch.diag(6 * x * scale))


@pytest.mark.parametrize("in_dims", [(0, None), (0, 0), (None, 0)])
def test_vmap(cubes, in_dims):
    x = torch.randn(4, 3) if in_dims[0] == 0 else torch.randn(3)
    scale = torch.rand(4) if in_dims[1] == 0 else torch.tensor(2.0)

    def total(x, scale):
        return compute(cubes, x, scale)[0].sum()

    got = vmap(grad(total, argnums=(0, 1)), in_dims)(x, scale)
    xs, scales = x.expand(4, 3), scale.expand(4)
    torch.testing.assert_close(got[0], 3 * xs**2 * scales.unsqueeze(1))
    torch.testing.assert_close(got[1], (xs**3).sum(1))
    assert "fast" not in cubes.ways
