"""The grouped maps equal their naive twins, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def test_gradients_equal_finite_differences():
    x, weight = leaf(3, 6), leaf(2, 3, 4)
    assert torch.autograd.gradcheck(grouped_linear, (x, weight))
    assert torch.autograd.gradcheck(grouped_layer_norm, (x, leaf(2, 3), leaf(2, 3)))
    assert torch.autograd.gradcheck(grouped_feed_forward, (x, leaf(2, 3, 4), leaf(2, 4, 2)))
    assert torch.autograd.gradcheck(attention_between_groups, [leaf(2, 3, 2, 2) for _ in range(3)])


def test_one_group_is_the_ordinary_map():
    x, weight, bias = leaf(2, 3, 5), leaf(5, 4), leaf(5)
    torch.testing.assert_close(grouped_linear(x, weight[None]), F.linear(x, weight.t()))
    scale = leaf(5)
    expected = F.layer_norm(x, (5,), scale, bias)
    assert torch.equal(grouped_layer_norm(x, scale[None], bias[None]), expected)


def test_epsilon_is_layer_norms():
    """Where groups hardly vary, ε is most of what they are divided by."""
    x = leaf(2, 6) * 1e-3
    scale, shift = torch.ones(2, 3).double(), torch.zeros(2, 3).double()
    first = nn.LayerNorm(3).double()(x[:, :3])
    torch.testing.assert_close(grouped_layer_norm(x, scale, shift)[:, :3], first)
    assert not torch.allclose(grouped_layer_norm(x, scale, shift, 1e-3)[:, :3], first)


def test_groups_keep_apart():
    """The output of a group has no gradient to another group's input or parameters."""
    x, weight, scale, shift = leaf(4, 6), leaf(3, 2, 2), leaf(3, 2), leaf(3, 2)
    up, down = leaf(3, 2, 9), leaf(3, 9, 2)
    y = grouped_layer_norm(grouped_linear(x, weight), scale, shift)
    y = grouped_feed_forward(y, up, down)
    leaves = (x, weight, scale, shift, up, down)
    to_x, *others = torch.autograd.grad(y[:, 2:4].square().sum(), leaves)
    assert not to_x[:, :2].any() and not to_x[:, 4:].any() and to_x[:, 2:4].any()
    for grad in others:
        assert not grad[0].any() and not grad[2].any() and grad[1].any()


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_any_layout_in_memory(layout):
    x = {
        "transposed": torch.randn(6, 4, 3).double().transpose(0, 2),  # (3, 4, 6)
        "strided": torch.randn(3, 4, 12).double()[..., ::2],
        "expanded": torch.randn(1, 4, 6).double().expand(3, 4, 6),
    }[layout]
    weight, scale, shift = leaf(2, 3, 5), leaf(2, 3), leaf(2, 3)
    same = x.contiguous()
    for function, rest in (
        (grouped_linear, (weight,)),
        (grouped_linear, (weight.transpose(1, 2).contiguous().transpose(1, 2),)),
        (grouped_layer_norm, (scale, shift)),
        (grouped_feed_forward, (weight, leaf(2, 5, 3))),
    ):
        torch.testing.assert_close(function(x, *rest), function(same, *rest))


def test_no_rows_at_all():
    x = torch.zeros(0, 4, 6)
    assert grouped_linear(x, torch.zeros(2, 3, 5)).shape == (0, 4, 10)
    assert grouped_layer_norm(x, torch.zeros(2, 3), torch.zeros(2, 3)).shape == (0, 4, 6)
    assert grouped_feed_forward(x, torch.zeros(2, 3, 5), torch.zeros(2, 5, 4)).shape == (0, 4, 8)
    q = torch.zeros(0, 4, 3, 2, 5)
    assert attention_between_groups(q, q, q).shape == q.shape


def test_weights_of_attention_are_dropped():
    """Values of one show which: each weight is dropped or doubled."""
    q, v = torch.zeros(500, 2, 2, 1), torch.ones(500, 2, 2, 1)
    read = attention_between_groups(q, q, v, dropout=0.5)
    assert set(read.unique().tolist()) == {0.0, 1.0, 2.0}
    assert 0.9 < read.mean() < 1.1


def test_hidden_units_are_dropped():
    x, up, down = torch.ones(1, 2), torch.ones(2, 1, 4000), torch.ones(2, 4000, 1) / 4000
    y = grouped_feed_forward(x, up, down, dropout=0.5)
    assert (y != 1).all()
    torch.testing.assert_close(y, torch.ones(1, 2), rtol=0, atol=0.1)


def test_large_logits_stay_finite():
    q, k, v = (leaf(3, 2, 2, 2) for _ in range(3))
    read = attention_between_groups(1e4 * q, 1e4 * k, v)
    assert read.isfinite().all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(read.sum(), (q, k, v)))


def test_autocast_works_in_its_own_precision():
    x, weight = leaf(4, 6, dtype=torch.float32), leaf(2, 3, 6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = grouped_linear(x, weight)
        heads = grouped_feed_forward(y, weight.mT, weight).unflatten(-1, (2, 3, 2))
        read = attention_between_groups(heads, heads, heads)
    assert y.dtype == read.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), grouped_linear(x, weight), rtol=0.05, atol=0.05)
    read.sum().backward()
    assert x.grad.dtype == weight.grad.dtype == torch.float32


def test_compiles_to_one_graph():
    def both(x, weight, scale, shift):
        y = grouped_layer_norm(grouped_linear(x, weight), scale, shift)
        heads = grouped_feed_forward(y, weight.mT, weight).unflatten(-1, (2, 2, 2))
        return attention_between_groups(heads, heads, heads)

    torch.compiler.reset()
    inputs = leaf(5, 6), leaf(2, 3, 4), leaf(2, 4), leaf(2, 4)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*inputs), both(*inputs), inputs)
