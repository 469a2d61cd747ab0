"""Every wrong argument gets an error that names it, what was expected and what came."""

import pytest
import torch
from systems import DIM, MAIN

import headwise as hw
from headwise.heads.cache import FixedAttentionCache

BATCH, TIME, KEYS = 2, 5, 3


def message(kind, *args, **kwargs):
    with pytest.raises(ValueError) as error:
        kind(*args, **kwargs)
    return str(error.value)


MAE, MOA, MOH, TIM = (
    hw.MixtureOfAttentiveExperts,
    hw.MixtureOfAttentionHeads,
    hw.MixtureOfHeads,
    hw.IndependentMechanismsLayer,
)
BY_NORMS = {"shared_heads": 1, "top_k": 1, "router": "query-norm"}


@pytest.mark.parametrize(
    "kind, args, options, parts",
    [
        (hw.MultiHeadAttention, (8, 0), {}, ["num_heads is 0", "positive"]),
        (hw.MultiHeadAttention, (10, 4), {}, ["embed_dim is 10", "num_heads = 4", "head_dim"]),
        (hw.MultiHeadAttention, (8, 2), {"dropout": 1.0}, ["dropout is 1.0", "[0, 1)"]),
        (MAE, (8, 2), {"dropped_heads": 2}, ["dropped_heads is 2", "1 to 1", "num_heads = 2"]),
        (MAE, (8, 2), {"gate": "none"}, ["gate is 'none'", "'uniform'"]),
        (MAE, (8, 2), {"gate_window": 0}, ["gate_window is 0", "positive"]),
        (MAE, (8, 2), {"gate_dropout": 1.0}, ["gate_dropout is 1.0"]),
        (MOA, (8, 4, 5, 4), {}, ["top_k is 5", "num_experts = 4"]),
        (MOA, (8, 4, 2, 4), {"balance": "token"}, ["balance is 'token'", "'batch'", "'sequence'"]),
        (MOA.from_size, (8, "8k32e"), {}, ["'8k32e'", "8K32E64D"]),
        (MOH, (8, 4), {"shared_heads": 4, "top_k": 1}, ["shared_heads is 4, expected 0 to 3"]),
        (MOH, (8, 4), {"shared_heads": 1, "top_k": 4}, ["top_k is 4, expected 1 to 3"]),
        (MOH, (8, 4), {**BY_NORMS, "scaled_gates": False}, ["expected it to be left out"]),
        (hw.GatedAttention, (8, 4), {"gate": "both"}, ["'headwise' or 'elementwise'"]),
        (hw.GatedAttention, (8, 4), {"gate_activation": "tanh"}, ["'doubled-sigmoid' or 'soft"]),
        (hw.GatedAttention, (8, 4), {"gate_inputs": 9}, ["is 9, expected 'all', a number from 0"]),
        (hw.GatedAttention, (8, 4), {"gate_inputs": -1}, ["from 0 to embed_dim = 8"]),
        (hw.GatedAttention, (8, 4), {"gate_inputs": 0}, ["expected gate_bias=True"]),
        (
            *(hw.GatedAttention, (10, 4), {"gate_inputs": "head", "head_dim": 2}),
            ["gate_inputs is 'head'", "embed_dim is a multiple of num_heads = 4"],
        ),
        (hw.AgreementAttention, (8, 4), {"routing": "magic"}, ["expected 'em' or 'simple'"]),
        (hw.AgreementAttention, (8, 4), {"num_capsules": 5}, ["a divisor of embed_dim = 8"]),
        (hw.AgreementAttention, (8, 4), {"inverse_temperature": -1.0}, ["-1.0", "positive"]),
        (hw.BranchedAttention, (10, 4, 4), {}, ["embed_dim is 10", "num_branches = 4"]),
        (hw.BranchedAttention, (8, 2, 5), {"ffn": "split"}, ["ffn_dim is 5", "'shared'"]),
        (hw.BranchedAttention, (8, 2, 4), {"weights": "sparsemax"}, ["'simplex' or 'softmax'"]),
        (hw.BranchedAttention, (8, 2, 4), {"top_k": 3}, ["top_k is 3", "1 to num_branches = 2"]),
        (hw.BranchedAttention, (8, 2, 4), {"top_k": 1, "weights": "random"}, ["leave top_k out"]),
        (hw.MultiHeadAttention, (8, 2), {"kdim": -5}, ["kdim is -5, expected a positive number"]),
        (MAE, (512, 32), {"dropped_heads": 12}, ["225,792,840 experts"]),
        (MOA, (8, 4, 2, 4), {"output_gain": 0}, ["output_gain is 0, expect"]),
        (hw.AgreementAttention, (8, 2), {"iterations": 10**9}, ["iterations is 1000000000"]),
        (hw.BranchedAttention, (8, 2, 8), {"output_gain": 1e300}, ["output_gain is 1e+300"]),
        (TIM, (12, 4, 8, 3), {}, ["num_heads is 4", "multiple of num_mechanisms = 3"]),
        (TIM, (12, 4, 8, 2), {"kdim": 6}, ["kdim is 6", "cross_attention=True"]),
        (TIM, (12, 4, 8, 2), {"exchange_heads": -1}, ["exchange_heads is -1"]),
        (TIM, (12, 4, 8, 2), {"norm": "middle"}, ["norm is 'middle'", "'post' or 'pre'"]),
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
        (KEY, {"key_padding_mask": boolean(BATCH, TIME)}, ["has shape (2, 5)", "= (2, 3)"]),
        (KEY, {"query_padding_mask": boolean(BATCH, KEYS)}, ["query_padding_mask", "= (2, 5)"]),
        (
            None,
            {"key_padding_mask": torch.ones(BATCH, TIME, dtype=torch.long)},
            ["key_padding_mask has dtype torch.int64", "torch.bool", "mask == 0"],
        ),
        (
            None,
            {"attn_mask": boolean(TIME, TIME).numpy(), "key_padding_mask": boolean(BATCH, TIME)},
            ["attn_mask is of type ndarray", "torch.tensor(...) makes one"],
        ),
        (None, {"key_padding_mask": torch.tensor(True)}, ["key_padding_mask is a single value"]),
        (KEY, {"attn_mask": boolean(KEYS, TIME)}, ["attn_mask has shape (3, 5)", "= (5, 3)"]),
        (None, {"attn_mask": boolean(BATCH, 7, TIME, TIME)}, ["(2, 7, 5, 5)", "(batch, 1 or"]),
    ],
)
def test_masks(name, key, masks, parts):
    text = message(MAIN[name].build(), X, key, **masks)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("mask", ["key_padding_mask", "attn_mask"])
@pytest.mark.parametrize("name", MAIN)
def test_a_mask_of_a_step_covers_what_is_cached(name, mask, fixed):
    """Where it does not, the cache stays as it was, so that the step can be done again."""
    module, keys = MAIN[name].build().eval(), TIME + 2 if fixed else TIME
    cache = FixedAttentionCache(keys) if fixed else hw.AttentionCache()
    module(X[:, :-1], is_causal=True, cache=cache)
    step = {"is_causal": True, "cache": cache}
    shape = (1, 1) if mask == "attn_mask" else (BATCH, 1)
    with pytest.raises(ValueError, match=rf"{mask} has shape \({shape[0]}, 1\).*{keys}\)"):
        module(X[:, -1:], **{mask: boolean(*shape)}, **step)
    expected = module(X, is_causal=True).output[:, -1:]
    torch.testing.assert_close(module(X[:, -1:], **step).output, expected)


@pytest.mark.parametrize("system", [hw.GatedAttention, hw.MixtureOfHeads])
def test_over_given_heads_nothing_is_counted_or_drawn_of_their_projections(system):
    module = system.over_heads(16, 4, 4, neutral=False)
    module.reset_parameters()
    with pytest.raises(NotImplementedError, match="the heads are those of another module"):
        module.macs(5, 5)
