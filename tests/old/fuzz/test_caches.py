"""Decoding in pieces equals one pass, whatever is removed, reordered or repeated in between."""

import pytest
import torch
from fuzzing import cuts, examples, paddings, random, seeds
from hypothesis import given
from hypothesis import strategies as st
from modules import MODULES, build
from systems import DIM

from headwise import AttentionCache
from headwise.heads.cache import FixedAttentionCache

actions = st.lists(
    st.sampled_from(["read", "read", "read", "reorder", "select", "repeat", "crop", "reset"]),
    min_size=1,
    max_size=7,
)


@pytest.mark.parametrize("name", MODULES)
@given(st.data(), seeds, st.integers(1, 3), actions)
@examples(suite=3, long=10)
def test_a_cache_says_what_one_pass_says(name, data, seed, batch, actions):
    torch.manual_seed(seed)
    module, cache = build(name), AttentionCache()
    records = data.draw(st.booleans(), label="keeps what can be removed")
    if records:
        cache.activate_past_recording()
    history = random(batch, 0, DIM)  # what the cache has read, and has not forgotten
    removable = 0
    for action in [*actions, "read"]:
        rows = len(history)
        if action == "read":
            new = random(rows, data.draw(st.integers(1, 4), label="tokens"), DIM)
            got = module(new, is_causal=True, cache=cache).output
            history, removable = torch.cat([history, new], 1), removable + new.size(1)
            expected = module(history, is_causal=True).output[:, -new.size(1) :]
            torch.testing.assert_close(got, expected)
            assert cache.get_seq_length() == history.size(1)
        elif action == "reset":
            cache.reset()
            history, removable = history[:, :0], 0
        elif action == "crop" and records:
            count = data.draw(st.integers(0, removable), label="removed")
            cache.crop(-count)
            history, removable = history[:, : history.size(1) - count], 0
        elif action == "repeat" and rows < 4:
            cache.batch_repeat_interleave(2)
            history = history.repeat_interleave(2, 0)
        elif action in ("reorder", "select"):
            size = rows if action == "reorder" else data.draw(st.integers(1, rows))
            chosen = data.draw(
                st.lists(st.integers(0, rows - 1), min_size=size, max_size=size), label=action
            )
            change = cache.reorder_cache if action == "reorder" else cache.batch_select_indices
            change(torch.tensor(chosen))
            history = history[chosen]


@pytest.mark.parametrize("name", MODULES)
@given(st.data(), seeds, st.integers(1, 3), st.integers(1, 8))
@examples(suite=2, long=10)
def test_padded_sequences_in_pieces(name, data, seed, batch, time):
    torch.manual_seed(seed)
    module, room = build(name), time + data.draw(st.integers(0, 3), label="more room")
    fixed = data.draw(st.booleans(), label="of a fixed size")
    cache = FixedAttentionCache(room) if fixed else AttentionCache()
    mask = data.draw(paddings(batch, time), label="padding")
    x = random(batch, time, DIM)
    at_once = module(x, key_padding_mask=mask, is_causal=True).output
    start = 0
    for length in data.draw(cuts(time), label="pieces"):
        end = start + length
        seen = mask[:, :end]
        if fixed and start:
            seen = torch.cat([mask, torch.zeros(batch, room - time, dtype=torch.bool)], 1)
        piece = module(x[:, start:end], key_padding_mask=seen, is_causal=True, cache=cache).output
        real = ~mask[:, start:end]
        torch.testing.assert_close(piece[real], at_once[:, start:end][real])
        start = end
