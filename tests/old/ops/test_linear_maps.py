"""The pieces of a linear map, whatever stands around its module."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from headwise.ops.linear_maps import LinearMap, ModuleMap, linear_map


def plain():
    return nn.Linear(3, 5)


def without_bias():
    return nn.Linear(3, 5, bias=False)


def hooked():
    linear = nn.Linear(3, 5)
    linear.register_forward_hook(lambda module, args, output: 2 * output)
    return linear


def with_a_forward_of_its_own():
    linear = nn.Linear(3, 5)
    linear.forward = lambda x: F.linear(x, 3 * linear.weight, linear.bias)
    return linear


def weight_normalised():
    return parametrizations.weight_norm(nn.Linear(3, 5))


def sequential():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 5))


MODULES = (plain, without_bias, hooked, with_a_forward_of_its_own, weight_normalised, sequential)


@pytest.mark.parametrize("module", MODULES)
def test_the_pieces_are_those_of_what_the_module_computes(module):
    made, x = module().double(), torch.randn(4, 2, 3, dtype=torch.float64)
    expected, zero = made(x), made(torch.zeros(3, dtype=torch.float64))
    pieces = linear_map(made, 3, x)
    factor = torch.tensor(0.3)
    torch.testing.assert_close(pieces(x), expected)
    torch.testing.assert_close(pieces(x, bias_factor=factor), expected - 0.7 * zero)
    torch.testing.assert_close(pieces.product(x), expected - zero)
    torch.testing.assert_close(x @ pieces.matrix.t(), expected - zero)
    if pieces.bias is not None:
        torch.testing.assert_close(pieces.bias, zero)


@pytest.mark.parametrize("module", MODULES)
def test_only_a_plain_linear_gives_its_own_tensors(module):
    made = module()
    assert type(linear_map(made, 3, torch.zeros(1))) is (
        LinearMap if module in (plain, without_bias) else ModuleMap
    )


def test_gradients_reach_what_stands_around_the_module():
    made, x = sequential(), torch.randn(4, 3)
    linear_map(made, 3, x).matrix.sum().backward()
    assert made[0].weight.grad is not None and made[1].weight.grad is not None
