"""Positions of a cache are removed again, and a system's memory of them too."""

import pytest
import torch
from systems import DIM, SYSTEMS
from test_decoding import BATCH, KEYS, TIME, in_chunks

from headwise import AttentionCache

REMEMBER = ("mae-7", "mae-6", "mae window", "mae causal queries")


def recording(**options):
    cache = AttentionCache(**options)
    cache.activate_past_recording()
    return cache


@pytest.mark.parametrize("chunks", [[1] * 4, [4], [1, 3]], ids=str)
@pytest.mark.parametrize("name", SYSTEMS)
def test_after_removing_positions_it_is_as_if_they_had_not_been(name, chunks):
    module, cache = SYSTEMS[name].build(), recording()
    x, refused = torch.randn(2, BATCH, TIME, DIM, dtype=torch.float64)
    expected = module(x, is_causal=True).output
    first = in_chunks(module, x[:, :2], [2], cache)
    cache.crop(0)
    in_chunks(module, torch.cat([x[:, 2:3], refused[:, 3:6]], dim=1), chunks, cache)
    cache.crop(-3)
    assert cache.get_seq_length() == 3
    rest = in_chunks(module, x[:, 3:], [1] * (TIME - 3), cache)
    torch.testing.assert_close(torch.cat([first, rest], 1), expected[:, [0, 1, *range(3, TIME)]])


@pytest.mark.parametrize("window", [None, 2])
def test_a_cross_attention_keeps_its_keys_and_its_memory_goes_back(window):
    module = SYSTEMS["mae causal queries"].build(gate_window=window)
    x, refused = torch.randn(2, BATCH, TIME, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KEYS, DIM, dtype=torch.float64)
    cache = recording(static=True)
    in_chunks(module, torch.cat([x[:, :2], refused[:, 2:5]], 1), [1, 4], cache, key=key)
    cache.crop(-3)
    assert cache.get_seq_length() == KEYS
    rest = in_chunks(module, x[:, 2:], [2, 3], cache, key=key)
    torch.testing.assert_close(rest, module(x, key).output[:, 2:])


def test_what_is_not_kept_cannot_be_gone_back_to():
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    standard, gated = AttentionCache(), AttentionCache()
    in_chunks(SYSTEMS["standard"].build(), x, [TIME], standard)
    standard.crop(-2)  # keys and values are there anyway
    assert standard.get_seq_length() == TIME - 2
    in_chunks(SYSTEMS["mae-7"].build(), x, [TIME], gated)
    with pytest.raises(ValueError, match=r"is -2, expected 0 to 0: .*activate_past_recording\(\)"):
        gated.crop(-2)
    with pytest.raises(ValueError, match="is -6, expected -5 to 0"):
        standard.crop(-6)
    with pytest.raises(ValueError, match="is 1, expected -5 to 0"):
        standard.crop(1)
    own = recording()
    own.extend(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    own.memory["own"] = torch.zeros(1, 7)
    with pytest.raises(ValueError, match=r"a memory that is not kept by remember\(\) does not"):
        own.crop(-1)
