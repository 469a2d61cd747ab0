from itertools import combinations
from math import comb

import pytest
import torch

from headwise.heads.cache import AttentionCache
from headwise.heads.mae.means import running_mean, sequence_mean
from headwise.heads.mae.mixture import head_scales, left_out_heads
from headwise.heads.mae.naive import naive_mixture, naive_running_mean

SIZES = [(2, 1), (4, 1), (4, 2), (4, 3), (8, 1), (8, 2)]


@pytest.mark.parametrize("heads, dropped", SIZES)
def test_experts_are_the_combinations_in_order(heads, dropped):
    left_out = left_out_heads(heads, dropped)
    assert left_out.shape == (comb(heads, dropped), heads)
    for row, expert in zip(left_out, combinations(range(heads), dropped), strict=True):
        assert tuple(row.nonzero().flatten().tolist()) == expert
        assert set(row.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("heads, dropped", SIZES)
def test_one_scale_per_head_equals_the_mixture_expert_by_expert(heads, dropped):
    left_out = left_out_heads(heads, dropped).double()
    gates = torch.randn(3, len(left_out), dtype=torch.float64).softmax(-1)
    outputs = torch.randn(3, heads, 5, dtype=torch.float64)
    scales = head_scales(gates, left_out)
    for b in range(3):
        expected = naive_mixture(gates[b], outputs[b], dropped)
        torch.testing.assert_close(scales[b] @ outputs[b], expected)


@pytest.mark.parametrize("heads, dropped", SIZES)
def test_scales_of_uniform_and_of_certain_gates(heads, dropped):
    left_out = left_out_heads(heads, dropped).double()
    uniform = torch.full((len(left_out),), 1 / len(left_out), dtype=torch.float64)
    torch.testing.assert_close(head_scales(uniform, left_out), torch.ones(heads).double())
    certain = torch.eye(len(left_out), dtype=torch.float64)
    scales = head_scales(certain, left_out)
    assert torch.equal(scales == 0, left_out == 1)
    assert (scales[left_out == 0] == heads / (heads - dropped)).all()


def test_sequence_mean_leaves_padding_out():
    x = torch.randn(3, 4, 2)
    padding = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]]).bool()
    torch.testing.assert_close(sequence_mean(x).mean, x.mean(1, keepdim=True))
    mean = sequence_mean(x, padding).mean[:, 0]
    torch.testing.assert_close(mean[0], x[0].mean(0))
    torch.testing.assert_close(mean[1], x[1, 1:3].mean(0))
    assert not mean[2].any()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 7, 20])
def test_running_mean_equals_its_loops(window, padded):
    x = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    padding = torch.rand(2, 7) < 0.4 if padded else None
    fast, naive = running_mean(x, padding, window).mean, naive_running_mean(x, padding, window)
    torch.testing.assert_close(fast, naive)
    torch.testing.assert_close(
        torch.autograd.grad(fast.square().sum(), x), torch.autograd.grad(naive.square().sum(), x)
    )


@pytest.mark.parametrize("chunks", [[1] * 7, [4, 3], [2, 1, 4]], ids=str)
@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_running_mean_remembers_between_calls(window, chunks):
    x, padding = torch.randn(2, 7, 3, dtype=torch.float64), torch.rand(2, 7) < 0.3
    cache = AttentionCache()
    parts = zip(x.split(chunks, 1), padding.split(chunks, 1), strict=True)
    means = [running_mean(part, pad, window, cache).mean for part, pad in parts]
    torch.testing.assert_close(torch.cat(means, 1), naive_running_mean(x, padding, window))
    assert all(state.size(0) == 2 for state in cache.memory.values())  # a beam search reorders rows
    if window is not None:
        assert cache.memory["recent"].size(1) == window  # no more than it will need


def test_a_window_beyond_the_sequence_takes_no_memory():
    x = torch.randn(2, 5, 3)
    widest = running_mean(x, None, 10**15).mean
    torch.testing.assert_close(widest, naive_running_mean(x, None, None))
    assert running_mean(x[:, :0], None, 10**15).mean.shape == (2, 0, 3)


def test_running_mean_of_a_long_sequence_in_float32():
    x = torch.randn(1, 5000, 2) + 3
    for window in (None, 100):
        exact = running_mean(x.double(), None, window).mean
        torch.testing.assert_close(
            running_mean(x, None, window).mean.double(), exact, rtol=0, atol=1e-3
        )
