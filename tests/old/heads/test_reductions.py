"""Where one system must equal another, or `nn.MultiheadAttention`, with the same weights."""

import pytest
import torch
from systems import DIM, HEADS, SYSTEMS, padding, random_mask
from torch import nn

import headwise as hw
from headwise.ops.masks import causal_mask

BATCH, TIME, KEYS = 3, 5, 7


def blocked(*shape):
    """Blocks a third of all pairs, and no query altogether."""
    mask = torch.rand(shape) < 0.3
    mask[..., 0] = False
    return mask


MASKS = {
    "none": lambda s: {},
    "padding": lambda s: {"key_padding_mask": padding(s, 2, 1, time=s, left=True)},
    "float padding": lambda s: {
        "key_padding_mask": torch.zeros(BATCH, s).masked_fill(
            padding(s, 2, 1, time=s), float("-inf")
        )
    },
    "causal": lambda s: {"attn_mask": causal_mask(TIME, s), "is_causal": True},
    "2-D": lambda s: {"attn_mask": blocked(TIME, s)},
    "2-D float": lambda s: {"attn_mask": torch.randn(TIME, s)},
    "3-D": lambda s: {"attn_mask": blocked(BATCH * HEADS, TIME, s)},
    "blocked rows": lambda s: {"attn_mask": random_mask(TIME, s)},
    "blocked sequence": lambda s: {"key_padding_mask": padding(s, 2, 0, time=s)},
}


@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 10}, {"bias": False}], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_standard_attention_equals_pytorchs(mask, widths):
    """In float32, to 1e-6; where PyTorch gives NaN because nothing may be attended, a zero read."""
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, **widths)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = hw.MultiHeadAttention(DIM, HEADS, **widths)
    ours.load_state_dict(theirs.state_dict())
    query = torch.randn(BATCH, TIME, DIM, requires_grad=True)
    cross = "kdim" in widths
    key = torch.randn(BATCH, KEYS, 6) if cross else query
    value = torch.randn(BATCH, KEYS, 10) if cross else query
    masks = MASKS[mask](KEYS if cross else TIME)
    for average in (True, False):
        expected, weights = theirs(query, key, value, average_attn_weights=average, **masks)
        out = ours(query, key, value, need_weights=True, average_attn_weights=average, **masks)
        attends = ~expected.isnan()
        assert attends.any()
        assert attends.all() == ("blocked" not in mask)
        torch.testing.assert_close(out[0][attends], expected[attends], rtol=1e-6, atol=1e-6)
        assert out[1].shape == weights.shape
        attends = ~weights.isnan()
        torch.testing.assert_close(out[1][attends], weights[attends], rtol=1e-6, atol=1e-6)
        assert not out[1][~attends].any()
        assert out.output.isfinite().all()
    plain = ours(query, key, value, **masks)
    assert plain[1] is None
    torch.testing.assert_close(plain[0], out[0])
    if "blocked" not in mask:
        got = torch.autograd.grad(plain[0].square().sum(), query)
        wanted = torch.autograd.grad(expected.square().sum(), query)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def same_weights(source, target):
    missing, unexpected = target.load_state_dict(source.state_dict(), strict=False)
    assert not unexpected and all(name.startswith("gate.") for name in missing)


MASKED = [{}, {"is_causal": True}, {"key_padding_mask": padding(5, 2, 1, time=TIME)}]


@pytest.mark.parametrize("masks", MASKED, ids=["none", "causal", "padding"])
@pytest.mark.parametrize("dropped", [1, 2, 3])
def test_uniform_gates_are_standard_attention_exactly(dropped, masks):
    standard = SYSTEMS["standard"].build(dtype=torch.float32)
    uniform = SYSTEMS["uni-mae"].build(dropped_heads=dropped, dtype=torch.float32)
    same_weights(standard, uniform)
    x = torch.randn(BATCH, TIME, DIM)
    out = uniform(x, **masks)
    assert torch.equal(out.output, standard(x, **masks).output)
    assert (out.routing.weights == 1 / uniform.num_experts).all()
    uniform.train()
    assert torch.equal(uniform(x, **masks).output, out.output)


@pytest.mark.parametrize("masks", MASKED, ids=["none", "causal", "padding"])
@pytest.mark.parametrize("name", ["mae-7", "mae-6", "mae window", "mae of scaled heads"])
def test_a_gate_that_says_nothing_is_standard_attention(name, masks):
    """Gates can be added to a pretrained model without changing what it computes."""
    standard, gated = SYSTEMS["standard"].build(), SYSTEMS[name].build()
    same_weights(standard, gated)
    gated.start_neutral()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    expected = standard(x, **masks).output
    torch.testing.assert_close(gated(x, **masks).output, expected, rtol=1e-12, atol=1e-12)


def test_one_expert_is_one_head_of_standard_attention():
    moa = SYSTEMS["moa"].build(num_experts=1, top_k=1, head_dim=5)
    standard = hw.MultiHeadAttention(DIM, 1, head_dim=5, bias=False).double()
    state = {
        "q_proj.weight": moa.expert_query[0].t(),
        "k_proj.weight": moa.k_proj.weight,
        "v_proj.weight": moa.v_proj.weight,
        "out_proj.weight": moa.expert_output[0].t(),
    }
    standard.load_state_dict(state)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    masks = {"is_causal": True, "key_padding_mask": padding(5, 2, 1, time=TIME)}
    out = moa(x, need_weights=True, **masks)
    expected = standard(x, need_weights=True, **masks)
    torch.testing.assert_close(out.output, expected.output)
    torch.testing.assert_close(out.weights, expected.weights)
    assert (out.routing.weights == 1).all()


@pytest.mark.parametrize("masks", MASKED, ids=["none", "causal", "padding"])
def test_a_head_of_keys_for_each_head_is_standard_attention_exactly(masks):
    standard = SYSTEMS["standard"].build()
    grouped = SYSTEMS["standard"].build(num_key_value_heads=HEADS)
    grouped.load_state_dict(standard.state_dict())
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    assert torch.equal(grouped(x, **masks).output, standard(x, **masks).output)


def by_head(weight, heads):
    return weight.unflatten(0, (heads, -1))


@pytest.mark.parametrize("masks", MASKED, ids=["none", "causal", "padding"])
@pytest.mark.parametrize("kept", [1, 2])
def test_heads_that_share_keys_are_heads_of_equal_keys(kept, masks):
    """Each head of keys is that of the heads behind one another."""
    grouped = SYSTEMS["standard"].build(num_key_value_heads=kept)
    standard = SYSTEMS["standard"].build()
    state = grouped.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        state[name] = by_head(state[name], kept).repeat_interleave(HEADS // kept, 0).flatten(0, 1)
    standard.load_state_dict(state)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    out, expected = (each(x, need_weights=True, **masks) for each in (grouped, standard))
    torch.testing.assert_close(out.output, expected.output)
    torch.testing.assert_close(out.weights, expected.weights)


@pytest.mark.parametrize("masks", MASKED, ids=["none", "causal", "padding"])
def test_all_experts_with_equal_weights_are_grouped_query_attention(masks):
    experts, kept, width = 3, 2, 4
    moa = SYSTEMS["moa"].build(
        num_experts=experts, top_k=experts, num_key_value_heads=kept, head_dim=width
    )
    nn.init.zeros_(moa.router.weight)
    heads = experts * kept
    sizes = {"head_dim": width, "num_key_value_heads": kept, "bias": False}
    standard = hw.MultiHeadAttention(DIM, heads, **sizes).double()
    # The heads of all experts that read the first head of keys, then those of the next.
    queries = moa.expert_query.unflatten(2, (kept, width)).permute(2, 0, 3, 1)
    outputs = moa.expert_output.unflatten(1, (kept, width)).permute(3, 1, 0, 2)
    state = {
        "q_proj.weight": queries.flatten(0, 2),
        "k_proj.weight": moa.k_proj.weight,
        "v_proj.weight": moa.v_proj.weight,
        "out_proj.weight": outputs.flatten(1) / experts,
    }
    standard.load_state_dict(state)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    out, expected = (each(x, need_weights=True, **masks) for each in (moa, standard))
    torch.testing.assert_close(out.output, expected.output)
    torch.testing.assert_close(out.weights, expected.weights)
