"""Means over time. A window counts real positions: padding changes nothing, wherever it is."""

import pytest
import reference
import torch
from systems import DIM, SYSTEMS

from headwise.heads.cache import AttentionCache, FixedAttentionCache
from headwise.heads.mae.means import last_seen, masked_mean, running_mean
from headwise.pretrained.memory import _MOST_REMOVED, _GrowingMemory

TIME = 6  # real positions
# Where they stand in a longer sequence: behind padding, before it, with padding among them.
PLACES = [
    [5, 6, 7, 8, 9, 10],
    [0, 1, 2, 3, 4, 5],
    [0, 1, 6, 7, 9, 10],
    [1, 4, 5, 6, 7, 8],
]
LONG = 11
CHUNKS = ([LONG], [1] * LONG, [3, 1, 0, 4, 3])
WINDOWS = [1, 2, 3, 20, None]


def recording():
    cache = AttentionCache()
    cache.activate_past_recording()
    return cache


CACHES = {
    "growing": AttentionCache,
    "recording": recording,
    "fixed": lambda: FixedAttentionCache(LONG),
    "beside a pretrained model": _GrowingMemory,
}


def spread(x):
    """Rows of x with padding as in PLACES, and where there is padding; what it holds is noise."""
    padded = torch.randn(len(PLACES), LONG, x.size(-1), dtype=x.dtype)
    padding = torch.ones(len(PLACES), LONG, dtype=torch.bool)
    for row, places in enumerate(PLACES):
        padded[row, places] = x
        padding[row, places] = False
    return padded, padding


def naive_running_mean(x, padding, window):
    seen = torch.ones(x.size(0), x.size(1), x.size(1), dtype=torch.bool).tril()
    seen = seen if padding is None else seen & ~padding.unsqueeze(1)
    return reference.masked_mean(x, seen, window)


@pytest.mark.parametrize("window", WINDOWS)
def test_the_means_are_those_without_padding(window):
    x = torch.randn(TIME, 3, dtype=torch.float64, requires_grad=True)
    padded, padding = spread(x)
    means = running_mean(padded, padding, window).mean
    torch.testing.assert_close(means, naive_running_mean(padded, padding, window))
    expected = naive_running_mean(x.unsqueeze(0), None, window)[0]
    for row, places in enumerate(PLACES):
        torch.testing.assert_close(means[row, places], expected)
        torch.testing.assert_close(
            torch.autograd.grad(means[row, places].square().sum(), x, retain_graph=True),
            torch.autograd.grad(expected.square().sum(), x, retain_graph=True),
        )


@pytest.mark.parametrize("window", WINDOWS)
def test_of_what_a_mask_shows(window):
    x = torch.randn(3, TIME, 3, dtype=torch.float64, requires_grad=True)
    gone = torch.rand(3, TIME) < 0.3
    real = (torch.rand(3, TIME, TIME) < 0.6) & ~gone.unsqueeze(1)
    kept = real if window is None else last_seen(real, window)
    means, expected = masked_mean(x, kept, gone).mean, reference.masked_mean(x, real, window)
    torch.testing.assert_close(means, expected)
    grads = [torch.autograd.grad(y.sin().sum(), x) for y in (means, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_cache_passes_over_padding_too(window, chunks, kind):
    padded, padding = spread(torch.randn(TIME, 3, dtype=torch.float64))
    cache = CACHES[kind]()
    parts = zip(padded.split(chunks, 1), padding.split(chunks, 1), strict=True)
    # Some callers leave out a mask that blocks nothing.
    means = [running_mean(x, pad if pad.any() else None, window, cache).mean for x, pad in parts]
    torch.testing.assert_close(torch.cat(means, 1), naive_running_mean(padded, padding, window))


@pytest.mark.parametrize("removed", [1, 4, LONG])
@pytest.mark.parametrize("window", WINDOWS)
def test_padding_is_removed_with_the_positions_that_it_takes(window, removed):
    x = torch.randn(TIME, 3, dtype=torch.float64)
    padded, padding = spread(x)
    expected = naive_running_mean(padded, padding, window)
    cache = recording()
    running_mean(padded, padding, window, cache)
    cache.crop(-removed)
    again = running_mean(padded[:, -removed:], padding[:, -removed:], window, cache).mean
    torch.testing.assert_close(again, expected[:, -removed:])


def test_a_long_past_of_padding_is_no_past():
    """Beside a pretrained model a memory keeps a bounded past, but no less than a window of it."""
    cache, window = _GrowingMemory(), 3
    x = torch.randn(1, 2 + _MOST_REMOVED + 9, 2, dtype=torch.float64)
    padding = torch.ones(x.shape[:2], dtype=torch.bool)
    padding[:, [0, 1, -1]] = False
    parts = zip(x.split(1, 1), padding.split(1, 1), strict=True)
    means = [running_mean(step, pad, window, cache).mean for step, pad in parts]
    torch.testing.assert_close(means[-1][0, 0], x[0, [0, 1, -1]].mean(0))
    assert cache.memory["recent"].size(1) == window + _MOST_REMOVED


@pytest.mark.parametrize("queries", ["self", "cross"])
def test_a_layer_with_padding_anywhere_computes_what_it_computes_without(queries):
    name = "mae window" if queries == "self" else "mae causal queries"
    options = {} if queries == "self" else {"gate_window": 2}
    module = SYSTEMS[name].build(**options)
    x, key = torch.randn(TIME, DIM).double(), torch.randn(1, 4, DIM).double()
    padded, padding = spread(x)

    def outputs(x, padding, cache):
        if queries == "self":
            return module(x, key_padding_mask=padding, is_causal=True, cache=cache)
        keys = key.expand(x.size(0), -1, -1)
        padding = padding if padding is None else padding[:, -x.size(1) :]
        return module(x, keys, query_padding_mask=padding, cache=cache)

    expected = outputs(x.unsqueeze(0), None, None).output[0]
    cache, steps, end = AttentionCache(static=queries == "cross"), [], 0
    for length in (2, 1, 5, 3):
        end += length
        steps.append(outputs(padded[:, end - length : end], padding[:, :end], cache).output)
    for whole in (outputs(padded, padding, None).output, torch.cat(steps, 1)):
        for row, places in enumerate(PLACES):
            torch.testing.assert_close(whole[row, places], expected)


def test_a_window_beyond_the_sequence_takes_no_memory():
    x = torch.randn(2, 5, 3)
    widest = running_mean(x, None, 10**15).mean
    torch.testing.assert_close(widest, naive_running_mean(x, None, None))
    assert running_mean(x[:, :0], None, 10**15).mean.shape == (2, 0, 3)
