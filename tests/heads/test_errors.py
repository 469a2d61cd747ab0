"""Every wrong argument gets an error that names it, what was expected and what came."""

import pytest
import torch
from systems import DIM, MAIN

import headwise as hw

BATCH, TIME, KEYS = 2, 5, 3


def message(kind, *args, **kwargs):
    with pytest.raises(ValueError) as error:
        kind(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    "kind, args, options, parts",
    [
        (hw.MultiHeadAttention, (0, 1), {}, ["embed_dim is 0", "positive"]),
        (hw.MultiHeadAttention, (8, 0), {}, ["num_heads is 0", "positive"]),
        (hw.MultiHeadAttention, (10, 4), {}, ["embed_dim is 10", "num_heads = 4", "head_dim"]),
        (hw.MultiHeadAttention, (8, 2), {"head_dim": 0}, ["head_dim is 0", "positive"]),
        (hw.MultiHeadAttention, (8, 2), {"dropout": 1.0}, ["dropout is 1.0", "[0, 1)"]),
        (hw.MultiHeadAttention, (8, 2), {"dropout": -0.1}, ["dropout is -0.1", "[0, 1)"]),
        (hw.MixtureOfAttentiveExperts, (10, 4), {}, ["embed_dim is 10", "num_heads = 4"]),
        (
            hw.MixtureOfAttentiveExperts,
            (8, 2),
            {"dropped_heads": 2},
            ["dropped_heads is 2", "1 to 1", "num_heads = 2"],
        ),
        (hw.MixtureOfAttentiveExperts, (8, 4), {"dropped_heads": 0}, ["dropped_heads is 0", "1"]),
        (hw.MixtureOfAttentiveExperts, (8, 2), {"gate": "none"}, ["gate is 'none'", "'uniform'"]),
        (
            hw.MixtureOfAttentiveExperts,
            (8, 2),
            {"gate_window": 0},
            ["gate_window is 0", "positive"],
        ),
        (hw.MixtureOfAttentiveExperts, (8, 2), {"gate_hidden_dim": 0}, ["gate_hidden_dim is 0"]),
        (hw.MixtureOfAttentiveExperts, (8, 2), {"gate_dropout": 1.0}, ["gate_dropout is 1.0"]),
        (hw.MixtureOfAttentionHeads, (8, 0, 1, 4), {}, ["num_experts is 0", "positive"]),
        (hw.MixtureOfAttentionHeads, (8, 4, 5, 4), {}, ["top_k is 5", "num_experts = 4"]),
        (
            hw.MixtureOfAttentionHeads,
            (8, 4, 2, 4),
            {"balance": "token"},
            ["balance is 'token'", "'batch'", "'sequence'"],
        ),
        (hw.MixtureOfAttentionHeads, (8, 4, 0, 4), {}, ["top_k is 0", "1 to"]),
        (hw.MixtureOfAttentionHeads, (8, 4, 2, 0), {}, ["head_dim is 0"]),
        (hw.MixtureOfAttentionHeads, (8, 4, 2, 4), {"dropout": 2}, ["dropout is 2"]),
        (hw.MixtureOfAttentionHeads.from_size, (8, "8k32e"), {}, ["'8k32e'", "8K32E64D"]),
        (hw.MixtureOfAttentionHeads.from_size, (8, "4K2E4D"), {}, ["top_k is 4"]),
    ],
)
def test_sizes(kind, args, options, parts):
    text = message(kind, *args, **options)
    assert all(part in text for part in parts), text


def boolean(*shape):
    return torch.zeros(shape, dtype=torch.bool)


X = torch.randn(BATCH, TIME, DIM).double()
KEY = torch.randn(BATCH, KEYS, DIM).double()


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize(
    "args, parts",
    [
        ((X[0],), ["query has shape (5, 12)", "(batch, time, 12)", "unsqueeze(0)"]),
        ((X[..., :7],), ["query has shape (2, 5, 7)", "(batch, time, 12)"]),
        ((X, KEY[..., :7]), ["key has shape (2, 3, 7)", "(batch, time, 12)"]),
        ((X, KEY, KEY[0]), ["value has shape (3, 12)", "(batch, time, 12)"]),
        ((X, KEY, KEY[:, :2]), ["value has (batch, time) = (2, 2)", "(2, 3)"]),
        ((X, KEY[:1]), ["key has batch size 1", "query, 2"]),
    ],
)
def test_inputs(name, args, parts):
    text = message(MAIN[name].build(), *args)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize(
    "key, masks, parts",
    [
        (
            None,
            {"key_padding_mask": boolean(TIME, BATCH)},
            ["key_padding_mask has shape (5, 2)", "= (2, 5)", "(time, batch)", "batch_first=True"],
        ),
        (
            None,
            {"key_padding_mask": boolean(TIME)},
            ["key_padding_mask has shape (5,)", "= (2, 5)"],
        ),
        (None, {"key_padding_mask": boolean(BATCH, 4)}, ["has shape (2, 4)", "= (2, 5)"]),
        (KEY, {"key_padding_mask": boolean(BATCH, TIME)}, ["has shape (2, 5)", "= (2, 3)"]),
        (KEY, {"query_padding_mask": boolean(BATCH, KEYS)}, ["query_padding_mask", "= (2, 5)"]),
        (
            None,
            {"key_padding_mask": torch.ones(BATCH, TIME, dtype=torch.long)},
            ["key_padding_mask has dtype torch.int64", "torch.bool", "mask == 0"],
        ),
        (
            None,
            {"attn_mask": torch.ones(TIME, TIME, dtype=torch.uint8)},
            ["attn_mask has dtype torch.uint8", "torch.bool"],
        ),
        (
            None,
            {"key_padding_mask": [[False] * TIME] * BATCH},
            ["key_padding_mask is of type list", "torch.tensor(...) makes one"],
        ),
        (
            None,
            {"attn_mask": boolean(TIME, TIME).numpy(), "key_padding_mask": boolean(BATCH, TIME)},
            ["attn_mask is of type ndarray", "torch.tensor(...) makes one"],
        ),
        (KEY, {"query_padding_mask": [False]}, ["query_padding_mask is of type list"]),
        (None, {"key_padding_mask": torch.tensor(True)}, ["key_padding_mask is a single value"]),
        (KEY, {"attn_mask": boolean(KEYS, TIME)}, ["attn_mask has shape (3, 5)", "= (5, 3)"]),
        (None, {"attn_mask": boolean(3, TIME, TIME)}, ["shape (3, 5, 5)", "(batch * heads"]),
        (None, {"attn_mask": boolean(BATCH, 7, TIME, TIME)}, ["(2, 7, 5, 5)", "(batch, 1 or"]),
        (None, {"attn_mask": boolean(TIME)}, ["attn_mask has shape (5,)", "(5, 5)"]),
    ],
)
def test_masks(name, key, masks, parts):
    text = message(MAIN[name].build(), X, key, **masks)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("name", MAIN)
def test_a_mask_of_a_step_covers_what_is_cached(name):
    module, cache = MAIN[name].build(), hw.AttentionCache()
    module(X, is_causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"key_padding_mask has shape \(2, 1\).*\(2, 6\)"):
        module(X[:, :1], key_padding_mask=boolean(BATCH, 1), is_causal=True, cache=cache)
