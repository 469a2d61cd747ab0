"""A cache of a fixed size says what one that grows says, in tensors that stay where they are."""

import pytest
import torch
from systems import DIM, SYSTEMS, padding
from test_decoding import BATCH, KEYS, TIME, in_chunks

from headwise.heads.fixed_cache import FixedAttentionCache

ROOM = TIME + 4


def tensors(cache):
    named = {"keys": cache.keys, "values": cache.values, "length": cache.length, **cache.memory}
    return {name: tensor.data_ptr() for name, tensor in named.items() if tensor is not None}


@pytest.mark.parametrize("name", SYSTEMS)
def test_padding_and_places_of_tensors(name):
    module, cache = SYSTEMS[name].build(), FixedAttentionCache(ROOM)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    mask = padding(7, 5, 6, time=TIME, left=True)
    at_once = module(x, key_padding_mask=mask, is_causal=True).output
    in_chunks(module, x[:, :3], [3], cache, mask=mask)
    places = tensors(cache)
    of_room = torch.cat([mask, torch.zeros(BATCH, ROOM - TIME, dtype=torch.bool)], dim=1)
    for t in range(3, TIME):
        step = module(x[:, t : t + 1], key_padding_mask=of_room, is_causal=True, cache=cache)
        real = ~mask[:, t]
        torch.testing.assert_close(step.output[real, 0], at_once[real, t])
        assert tensors(cache) == places


@pytest.mark.parametrize("window", [None, 2])
def test_cross_attention(window):
    module = SYSTEMS["mae causal queries"].build(gate_window=window)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KEYS, DIM, dtype=torch.float64)
    cache = FixedAttentionCache(ROOM, static=True)
    first = in_chunks(module, x[:, :2], [2], cache, key=key)
    places = tensors(cache)
    rest = in_chunks(module, x[:, 2:], [1, 4], cache, key=key)
    torch.testing.assert_close(torch.cat([first, rest], 1), module(x, key).output)
    assert tensors(cache) == places


def test_reset_and_its_limits():
    module, cache = SYSTEMS["mae-7"].build(), FixedAttentionCache(TIME)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    first = in_chunks(module, x, [TIME], cache)
    with pytest.raises(ValueError, match="room for 7 positions, expected 8"):
        module(x[:, :1], is_causal=True, cache=cache)
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.is_filled
    torch.testing.assert_close(in_chunks(module, x, [3, 4], cache), first)
    cache.crop(0)
    with pytest.raises(ValueError, match="keeps no past to go back to"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="max_length is 0, expected a positive number"):
        FixedAttentionCache(0)
