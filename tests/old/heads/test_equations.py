"""Every system equals its paper's equations, written as plain loops: forward and gradients."""

import pytest
import torch
from systems import DIM, KINDS, SYSTEMS, as_float, padding, random_mask

BATCH, TIME, KEYS = 2, 3, 4

# Each gives the masks of a call from how many heads a mask per head must have, and the two lengths.
MASKS = {
    "none": lambda heads, t, s: {},
    "padding": lambda heads, t, s: {"key_padding_mask": padding(s, 2, time=s)},
    "float padding": lambda heads, t, s: {
        "key_padding_mask": as_float(padding(s - 1, 2, time=s, left=True))
    },
    "causal": lambda heads, t, s: {"is_causal": True},
    "causal, padding": lambda heads, t, s: {
        "is_causal": True,
        "key_padding_mask": padding(s, 2, time=s, left=True),
    },
    "2-D": lambda heads, t, s: {"attn_mask": random_mask(t, s)},
    "2-D float": lambda heads, t, s: {"attn_mask": torch.randn(t, s, dtype=torch.float64)},
    "4-D": lambda heads, t, s: {"attn_mask": random_mask(BATCH, 1, t, s)},
    "2-D float, padding, causal": lambda heads, t, s: {
        "attn_mask": torch.randn(t, s, dtype=torch.float64),
        "key_padding_mask": padding(1, s, time=s),
        "is_causal": True,
    },
    "2-D, float padding": lambda heads, t, s: {
        "attn_mask": random_mask(t, s),
        "key_padding_mask": as_float(padding(2, s, time=s)),
    },
}
# Per head: not for the loops of MoA, whose heads differ from token to token.
MASKS_PER_HEAD = {
    "3-D": lambda heads, t, s: {"attn_mask": random_mask(BATCH * heads, t, s)},
    "3-D float": lambda heads, t, s: {
        "attn_mask": torch.randn(BATCH * heads, t, s, dtype=torch.float64)
    },
    "4-D per head": lambda heads, t, s: {"attn_mask": random_mask(BATCH, heads, t, s)},
    "4-D float, padding": lambda heads, t, s: {
        "attn_mask": torch.randn(BATCH, heads, t, s, dtype=torch.float64),
        "key_padding_mask": padding(s, 2, time=s),
    },
}


def check(system, module, query, key=None, value=None, **masks):
    """Output, routing and all gradients equal those of the reference."""
    if key is None and system.refuses(module, query, **masks):
        with pytest.raises(ValueError, match=r"gate_window is 2, .* expected is_causal=True"):
            module(query, **masks)
        return
    out = module(query, key, value, **masks)
    output, weights, loss = system.reference(module, query, key, value, **masks)
    torch.testing.assert_close(out.output, output, rtol=1e-9, atol=1e-9)
    if weights is None:
        assert out.routing is None
    else:
        torch.testing.assert_close(out.routing.weights, weights, rtol=1e-9, atol=1e-9)
    leaves = [x for x in (query, key, value) if x is not None] + list(module.parameters())
    direction = torch.randn_like(output)
    mine, theirs = (out.output * direction).sum(), (output * direction).sum()
    if loss is not None:
        torch.testing.assert_close(out.routing.loss, loss, rtol=1e-9, atol=1e-12)
        mine, theirs = mine + 300 * out.routing.loss, theirs + 300 * loss
    got = torch.autograd.grad(mine, leaves, allow_unused=True, materialize_grads=True)
    expected = torch.autograd.grad(theirs, leaves, allow_unused=True, materialize_grads=True)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


# Masks matter to attention, which all systems share, and to gates and routers that look at them.
# The loops of routing take long where each dimension is a capsule.
FEW = ("none", "2-D float, padding, causal")
SLOW_LOOPS = ("agreement-em", "agreement-em of the authors' code", "agreement-simple")
EVERY_MASK = [n for n in SYSTEMS if n.startswith(("mae", "moa", "moh")) or n in KINDS]
CALLS = [(n, m) for n in SYSTEMS for m in MASKS if n in EVERY_MASK or m in FEW]


@pytest.mark.parametrize(("name", "masks"), CALLS)
def test_self_attention_equals_the_equations(name, masks):
    system = SYSTEMS[name]
    module = system.build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64, requires_grad=True)
    check(system, module, x, **MASKS[masks](module.num_heads, TIME, TIME))


@pytest.mark.parametrize(("name", "masks"), CALLS)
def test_cross_attention_equals_the_equations(name, masks):
    """Keys and values of their own widths and length."""
    system = SYSTEMS[name]
    module = system.build(kdim=5, vdim=7)
    query = torch.randn(BATCH, TIME, DIM, dtype=torch.float64, requires_grad=True)
    key = torch.randn(BATCH, KEYS, 5, dtype=torch.float64, requires_grad=True)
    value = torch.randn(BATCH, KEYS, 7, dtype=torch.float64, requires_grad=True)
    given = MASKS[masks](module.num_heads, TIME, KEYS)
    queries = padding(TIME, 2, time=TIME)
    check(system, module, query, key, value, query_padding_mask=queries, **given)


@pytest.mark.parametrize("masks", MASKS_PER_HEAD)
@pytest.mark.parametrize("name", [n for n in SYSTEMS if "moa" not in n and n not in SLOW_LOOPS])
def test_masks_per_head_equal_the_equations(name, masks):
    system = SYSTEMS[name]
    module = system.build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64, requires_grad=True)
    check(system, module, x, **MASKS_PER_HEAD[masks](module.num_heads, TIME, TIME))


@pytest.mark.parametrize("name", ["moa", "moa dense"])
def test_a_mask_laid_out_per_head_may_be_the_same_for_all_experts(name):
    system = SYSTEMS[name]
    module = system.build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    mask = random_mask(BATCH, 1, TIME, TIME)
    expected, _, _ = system.reference(module, x, attn_mask=mask)
    per_head = mask.expand(-1, module.top_k, -1, -1)
    for given in (per_head, per_head.flatten(0, 1)):
        torch.testing.assert_close(module(x, attn_mask=given).output, expected)


@pytest.mark.parametrize("batch, time", [(1, 1), (1, 5), (3, 1), (3, 6)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_other_shapes_equal_the_equations(name, batch, time):
    system = SYSTEMS[name]
    x = torch.randn(batch, time, DIM, dtype=torch.float64, requires_grad=True)
    check(system, system.build(), x, is_causal=time % 2 == 0)


@pytest.mark.parametrize("name", SYSTEMS)
def test_training_without_dropout_mixes_by_the_same_equations(name):
    """A causal MAE normalises by the running statistics also in training, so that only the
    sequence-wise gates, which use the batch's, are left out here.
    """
    system = SYSTEMS[name]
    module = system.build()
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    expected, _, loss = system.reference(module, x, is_causal=True)
    out = module.train()(x, is_causal=True)
    torch.testing.assert_close(out.output, expected, rtol=1e-9, atol=1e-9)
    if loss is not None:
        torch.testing.assert_close(out.routing.loss, loss)


@pytest.mark.parametrize("name", ["mae-7", "mae-6"])
def test_sequence_gates_normalise_by_the_batch_in_training(name):
    system = SYSTEMS[name]
    module = system.build()
    x = torch.randn(4, TIME, DIM, dtype=torch.float64)
    mask = padding(3, 2, 3, 1, time=TIME)
    means = torch.stack([row[~pad].mean(0) for row, pad in zip(x, mask, strict=True)])
    before = module.gate.norm.running_mean.clone(), module.gate.norm.running_var.clone()
    out = module.train()(x, key_padding_mask=mask)
    # In evaluation the reference normalises by the running statistics: give it the batch's.
    after = module.gate.norm.running_mean.clone(), module.gate.norm.running_var.clone()
    module.gate.norm.running_mean.copy_(means.mean(0))
    module.gate.norm.running_var.copy_(means.var(0, unbiased=False))
    expected, gates, _ = system.reference(module, x, key_padding_mask=mask)
    torch.testing.assert_close(out.output, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.routing.weights, gates)
    torch.testing.assert_close(after[0], 0.9 * before[0] + 0.1 * means.mean(0))
    torch.testing.assert_close(after[1], 0.9 * before[1] + 0.1 * means.var(0))
    assert module.gate.norm.num_batches_tracked == 1


def test_noisy_routing_adds_noise_of_a_learned_size_in_training_only():
    """Equation 3: H(x) = x W_g + N(0, 1) · softplus(x W_noise)."""
    module = SYSTEMS["moa"].build(noisy=True)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    expected, _, _ = SYSTEMS["moa"].reference(module, x)
    torch.testing.assert_close(module(x).output, expected)

    torch.manual_seed(3)
    noise = torch.randn(BATCH, TIME, module.num_experts, dtype=torch.float64)
    size = torch.log1p(torch.exp(x @ module.router_noise.weight.T))
    probability = (x @ module.router.weight.T + noise * size).softmax(-1)
    torch.manual_seed(3)
    out = module.train()(x)
    chosen = probability.topk(2).indices
    assert torch.equal(out.routing.indices, chosen)
    kept = probability.gather(-1, chosen)
    weights = torch.zeros_like(probability).scatter(-1, chosen, kept / kept.sum(-1, keepdim=True))
    torch.testing.assert_close(out.routing.weights, weights)
