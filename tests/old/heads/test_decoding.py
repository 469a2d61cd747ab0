"""Decoding step by step through a cache equals decoding at once."""

import pytest
import torch
from systems import DIM, GATED, SYSTEMS, padding

from headwise import AttentionCache
from headwise.heads.cache import FixedAttentionCache

BATCH, TIME, KEYS = 3, 7, 4
CACHES = {"growing": AttentionCache, "fixed": lambda: FixedAttentionCache(TIME + 4)}
CHUNKS = ([1] * 7, [3, 1, 1, 2], [7], [2, 5])


def in_chunks(module, x, chunks, cache, *, key=None, mask=None, **kwargs):
    """The outputs of `module` over consecutive chunks of x."""
    outputs, start = [], 0
    for length in chunks:
        end = start + length
        query = x[:, start:end]
        if key is not None:
            out = module(query, key, cache=cache, **kwargs)
        else:
            seen = None if mask is None else mask[:, :end]
            out = module(query, is_causal=True, key_padding_mask=seen, cache=cache, **kwargs)
        outputs.append(out.output)
        start = end
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("name", SYSTEMS)
def test_self_attention_step_by_step(name, chunks, kind):
    module = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    stepwise = in_chunks(module, x, chunks, CACHES[kind]())
    torch.testing.assert_close(stepwise, module(x, is_causal=True).output)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_padding_while_decoding(name, left):
    module = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    mask = padding(7, 5, 6, time=TIME, left=left)
    at_once = module(x, key_padding_mask=mask, is_causal=True).output
    stepwise = in_chunks(module, x, [3, 1, 1, 2], AttentionCache(), mask=mask)
    torch.testing.assert_close(stepwise[~mask], at_once[~mask])


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_single_step_needs_no_causal_flag(name):
    """One query behind all cached keys sees them all anyway; MAE's gates must do likewise."""
    module = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    cache = AttentionCache()
    steps = [module(x[:, t : t + 1], cache=cache).output for t in range(TIME)]
    torch.testing.assert_close(torch.cat(steps, 1), module(x, is_causal=True).output)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("name", ["standard", "mae causal queries", "uni-mae", "moa"])
def test_cross_attention_step_by_step(name, chunks, window):
    options = {"gate_window": window} if name == "mae causal queries" else {}
    module = SYSTEMS[name].build(kdim=5, vdim=5, **options)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KEYS, 5, dtype=torch.float64)
    mask = {"key_padding_mask": padding(4, 1, 3, time=KEYS)}
    cache = AttentionCache(static=True)
    stepwise = in_chunks(module, x, chunks, cache, key=key, **mask)
    torch.testing.assert_close(stepwise, module(x, key, **mask).output)
    assert cache.get_seq_length() == KEYS


def test_the_keys_of_a_cross_attention_are_computed_once():
    module = SYSTEMS["standard"].build()
    x, key = torch.randn(2, BATCH, TIME, DIM, dtype=torch.float64)
    cache = AttentionCache(static=True)
    first = module(x, key, cache=cache).output
    for projection in (module.k_proj, module.v_proj):
        torch.nn.init.zeros_(projection.weight)
    torch.testing.assert_close(module(x, key, cache=cache).output, first)


@pytest.mark.parametrize("name", SYSTEMS)
def test_weights_of_a_step_cover_all_keys(name):
    module = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    cache = AttentionCache()
    module(x[:, :4], is_causal=True, cache=cache)
    step = module(x[:, 4:], is_causal=True, cache=cache, need_weights=True)
    at_once = module(x, is_causal=True, need_weights=True)
    torch.testing.assert_close(step.weights, at_once.weights[:, :, 4:])


def branches(x, first, second):
    """What a beam search has seen whose rows at step `first` came from rows `second`."""
    return torch.cat([x[second, :first], x[:, first:]], dim=1)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", SYSTEMS)
def test_beam_search_reorders_everything_that_is_remembered(name, kind):
    module, cache = SYSTEMS[name].build(), CACHES[kind]()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    module(x[:, :4], is_causal=True, cache=cache)
    rows = torch.tensor([2, 0, 0])
    cache.reorder_cache(rows)
    after = in_chunks(module, x[:, 4:], [1, 2], cache)
    expected = module(branches(x, 4, rows), is_causal=True).output[:, 4:]
    torch.testing.assert_close(after, expected)


@pytest.mark.parametrize("name", ["standard", "mae causal queries", "moa"])
def test_beam_search_reorders_cross_attention(name):
    """The gates of a cross-attention remember the queries, though its keys stay."""
    module = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KEYS, DIM, dtype=torch.float64)
    cache = AttentionCache(static=True)
    module(x[:, :4], key, cache=cache)
    rows = torch.tensor([1, 1, 2])
    cache.reorder_cache(rows)
    after = module(x[:, 4:], key[rows], cache=cache).output
    expected = module(branches(x, 4, rows), key[rows]).output[:, 4:]
    torch.testing.assert_close(after, expected)


@pytest.mark.parametrize("name", GATED)
def test_rows_are_selected_and_repeated(name):
    module = SYSTEMS[name].build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    cache = AttentionCache()
    module(x[:, :4], is_causal=True, cache=cache)
    cache.batch_select_indices(torch.tensor([2, 1]))
    cache.batch_repeat_interleave(2)
    rows = torch.tensor([2, 2, 1, 1])
    after = module(x[rows, 4:], is_causal=True, cache=cache).output
    torch.testing.assert_close(after, module(x[rows], is_causal=True).output[:, 4:])
