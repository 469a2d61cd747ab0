"""The grouped maps equal their naive twins, forward and backward."""

import pytest
import torch
from torch import Tensor

from headwise.heads.tim.grouped import (
    attention_between_groups,
    grouped_feed_forward,
    grouped_layer_norm,
    grouped_linear,
)
from headwise.heads.tim.naive import (
    naive_attention_between_groups,
    naive_grouped_feed_forward,
    naive_grouped_layer_norm,
    naive_grouped_linear,
)
from headwise.ops.activations import ACTIVATIONS

LEADING = [(1,), (5,), (2, 3), (3, 1), (2, 1, 4)]
SIZES = [(1, 3, 4), (2, 4, 3), (3, 2, 2), (4, 3, 1), (2, 1, 5)]  # groups, in, out
each_shape = pytest.mark.parametrize("leading", LEADING, ids=str)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def assert_same(fast: Tensor, naive: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Outputs and the gradients of a random projection of them are the same."""
    torch.testing.assert_close(fast, naive)
    direction = torch.randn_like(naive)
    torch.testing.assert_close(
        torch.autograd.grad(fast, inputs, direction), torch.autograd.grad(naive, inputs, direction)
    )


@each_shape
@pytest.mark.parametrize("groups, in_dim, out_dim", SIZES)
def test_grouped_linear_equals_its_loops(leading, groups, in_dim, out_dim):
    x, weight = leaf(*leading, groups * in_dim), leaf(groups, in_dim, out_dim)
    assert_same(grouped_linear(x, weight), naive_grouped_linear(x, weight), (x, weight))


@each_shape
@pytest.mark.parametrize("groups, in_dim, hidden_dim", SIZES)
def test_grouped_feed_forward_equals_its_loops(leading, groups, in_dim, hidden_dim):
    inputs = (
        leaf(*leading, groups * in_dim),
        leaf(groups, in_dim, hidden_dim),
        leaf(groups, hidden_dim, 3),
    )
    for name in ACTIVATIONS:
        fast = grouped_feed_forward(*inputs, activation=name)
        assert_same(fast, naive_grouped_feed_forward(*inputs, activation=name), inputs)


@each_shape
@pytest.mark.parametrize("groups, width, _", SIZES)
def test_grouped_layer_norm_equals_its_loops(leading, groups, width, _):
    inputs = leaf(*leading, groups * width), leaf(groups, width), leaf(groups, width)
    assert_same(grouped_layer_norm(*inputs), naive_grouped_layer_norm(*inputs), inputs)


@each_shape
@pytest.mark.parametrize("groups, heads, head_dim", [(1, 2, 3), (2, 1, 4), (2, 2, 3), (4, 3, 1)])
def test_attention_between_groups_equals_its_loops(leading, groups, heads, head_dim):
    q, k, v = (leaf(*leading, groups, heads, head_dim) for _ in range(3))
    fast = attention_between_groups(q, k, v)
    assert_same(fast, naive_attention_between_groups(q, k, v), (q, k, v))


def test_weights_of_attention_are_dropped():
    """Values of one show which: each weight is dropped or doubled."""
    q, v = torch.zeros(500, 2, 2, 1), torch.ones(500, 2, 2, 1)
    read = attention_between_groups(q, q, v, dropout=0.5)
    assert set(read.unique().tolist()) == {0.0, 1.0, 2.0}
    assert 0.9 < read.mean() < 1.1
