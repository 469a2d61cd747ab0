"""Under a causal mask no later token changes an earlier output, and padding changes none."""

import pytest
import torch
from systems import DIM, GATED, SYSTEMS, as_float, padding

import headwise as hw
from headwise.ops.masks import causal_mask

BATCH, TIME = 3, 6
CAUSAL = causal_mask(TIME, TIME)
CAUSAL_MASKS = {
    "is_causal": {"is_causal": True},
    "boolean": {"attn_mask": CAUSAL},
    "float": {"attn_mask": as_float(CAUSAL)},
    "float of -1e4": {"attn_mask": CAUSAL * -1e4},
    "float of the least number": {"attn_mask": CAUSAL * torch.finfo(torch.float32).min},
    "4-D": {"attn_mask": CAUSAL.expand(BATCH, 1, TIME, TIME)},
}
ROW = torch.arange(TIME)
PREFIX = CAUSAL & (ROW >= 3)  # the first three see one another
CHUNKS = ROW.unsqueeze(1) // 2 < ROW // 2  # all of the own chunk and of earlier ones
TEXTS = (ROW.unsqueeze(1) < 2) != (ROW < 2)  # a text of two tokens, and one of four
WINDOW = CAUSAL | ~causal_mask(TIME, TIME, offset=-2)
OTHER_MASKS = {
    "prefix": PREFIX,
    "chunked": CHUNKS,
    "block-diagonal": TEXTS,
    "block-diagonal, causal": TEXTS | CAUSAL,
    "sliding window": WINDOW,
    "each row its own": torch.stack([PREFIX, TEXTS, CAUSAL]).unsqueeze(1),
}
STEPS = ("joint", "gate", "expert", "expert by position")
MODES = [(name, None) for name in SYSTEMS] + [
    (name, step) for name in SYSTEMS for step in (STEPS if "mae" in name else STEPS[:1])
]


def build(name, step, **options):
    """In evaluation if step is None, else in training."""
    module = SYSTEMS[name].build(train=step is not None, **options)
    if step is not None and "mae" in name:
        module.step = step
    return module


def run(module, *args, **kwargs):
    """A forward pass with its own seed, which leaves no trace in the running statistics."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    torch.manual_seed(5)
    out = module(*args, **kwargs)
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])
    return out


@pytest.mark.parametrize("mask", CAUSAL_MASKS)
@pytest.mark.parametrize("name, step", MODES)
def test_a_future_token_changes_no_past_output(name, step, mask):
    module = build(name, step)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    if name == "mae window" and mask != "is_causal":
        with pytest.raises(ValueError, match=r"gate_window is 2, .* expected is_causal=True"):
            module(x, **CAUSAL_MASKS[mask])
        return
    before = run(module, x, **CAUSAL_MASKS[mask])
    for t in (1, 3, TIME - 1):
        changed = x.clone()
        changed[:, t:] += 3 * torch.randn_like(changed[:, t:])
        after = run(module, changed, **CAUSAL_MASKS[mask])
        torch.testing.assert_close(
            after.output[:, :t], before.output[:, :t], rtol=1e-12, atol=1e-12
        )
        assert not torch.allclose(after.output[:, t:], before.output[:, t:])
        if before.routing is not None and before.routing.weights.dim() > 1:
            weights = before.routing.weights
            torch.testing.assert_close(after.routing.weights[:, :t], weights[:, :t])


@pytest.mark.parametrize("mask", OTHER_MASKS)
@pytest.mark.parametrize(
    "name, form",
    [(name, "boolean") for name in SYSTEMS if "window" not in name]
    + [(name, form) for name in ("mae-7", "moh") for form in ("float", "float of -1e4")],
)
def test_what_a_mask_hides_changes_no_output(name, form, mask):
    """Each position is changed in turn: the outputs that may not see it stay as they were."""
    blocked = OTHER_MASKS[mask]
    given = {"boolean": blocked, "float": as_float(blocked), "float of -1e4": blocked * -1e4}[form]
    module = build(name, None)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    before = module(x, attn_mask=given).output
    changed = x.repeat(TIME, 1, 1, 1)  # (position that changes, batch, time, dim)
    # Not by one number for all: a norm takes that away.
    changed[ROW, :, ROW] += torch.linspace(2, 4, DIM, dtype=torch.float64)
    many = given.repeat(TIME, 1, 1, 1) if given.dim() == 4 else given
    after = module(changed.flatten(0, 1), attn_mask=many).output.unflatten(0, (TIME, BATCH))
    kept = blocked.expand(BATCH, 1, TIME, TIME)[:, 0].permute(2, 0, 1)
    torch.testing.assert_close(after[kept], before.expand_as(after)[kept], rtol=1e-9, atol=1e-9)
    assert not torch.isclose(after[~kept], before.expand_as(after)[~kept]).all(-1).any()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mask", ["prefix", "chunked"])
def test_a_gate_in_training_sees_no_more(mask, step):
    module, blocked = build("mae-7", step), OTHER_MASKS[mask]
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    changed = torch.cat([x[:, :-1], x[:, -1:] + 3], dim=1)
    before, after = (run(module, each, attn_mask=blocked).output for each in (x, changed))
    unseen = blocked[:, -1]
    torch.testing.assert_close(after[:, unseen], before[:, unseen], rtol=1e-12, atol=1e-12)
    assert not torch.isclose(after[:, ~unseen], before[:, ~unseen]).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_texts_in_one_row_are_what_they_are_alone(name, causal):
    module = build(name, None)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    if name == "mae window" and not causal:
        with pytest.raises(ValueError, match="gate_window is 2"):
            module(x, attn_mask=TEXTS)
        return
    together = module(x, attn_mask=TEXTS, is_causal=causal).output
    for text in (slice(0, 2), slice(2, TIME)):
        alone = module(x[:, text], is_causal=causal).output
        torch.testing.assert_close(together[:, text], alone)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first", list(OTHER_MASKS)[:3])
def test_a_cache_goes_on_from_any_mask(first, causal):
    """A prompt with a mask, then steps that see all of it: as one pass with the whole mask."""
    module = build("mae-7", None)
    x = torch.randn(BATCH, TIME + 2, DIM, dtype=torch.float64)
    whole = causal_mask(TIME + 2, TIME + 2)
    whole[:TIME, :TIME] = OTHER_MASKS[first] | (CAUSAL if causal else False)
    cache = hw.AttentionCache()
    parts = [module(x[:, :TIME], attn_mask=whole[:TIME, :TIME], is_causal=causal, cache=cache)]
    parts.append(module(x[:, TIME : TIME + 1], cache=cache))
    parts.append(module(x[:, TIME + 1 :], is_causal=True, cache=cache))
    expected = module(x, attn_mask=whole).output
    torch.testing.assert_close(torch.cat([part.output for part in parts], 1), expected)


def test_what_a_gate_cannot_know_of_a_cache_is_an_error():
    module, x = build("mae-7", None), torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    cache = hw.AttentionCache()
    module(x[:, :4], is_causal=True, cache=cache)
    with pytest.raises(ValueError, match="leave out attn_mask"):
        module(x[:, 4:], attn_mask=TEXTS[4:], is_causal=True, cache=cache)


@pytest.mark.parametrize("step", [None, *STEPS])
def test_causal_queries_of_a_cross_attention_see_no_later_query(step):
    module = build("mae causal queries", step)
    query, key = torch.randn(2, BATCH, TIME, DIM, dtype=torch.float64)
    before = run(module, query, key).output
    changed = query.clone()
    changed[:, 3:] += 1
    after = run(module, changed, key).output
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=1e-12, atol=1e-12)


LENGTHS = (6, 2, 4)


@pytest.mark.parametrize("form", ["boolean", "float", "float of -1e4"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_padded_batch_equals_each_sequence_alone(name, left, causal, form):
    module = build(name, None)
    mask = padding(*LENGTHS, time=TIME, left=left)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    x[mask] = 100.0  # what stands at padding must not matter
    given = {"boolean": mask, "float": as_float(mask), "float of -1e4": mask * -1e4}[form]
    together = module(x, key_padding_mask=given, is_causal=causal)
    for b in range(BATCH):
        real = ~mask[b]
        alone = module(x[b, real].unsqueeze(0), is_causal=causal)
        torch.testing.assert_close(together.output[b, real], alone.output[0])
        if alone.routing is not None and alone.routing.weights.dim() > 1:
            weights = together.routing.weights[b]
            weights = weights[real] if weights.dim() == 2 else weights
            torch.testing.assert_close(weights, alone.routing.weights[0])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_query_padding_of_a_cross_attention_changes_no_real_query(name, left):
    module = build(name, None)
    mask = padding(*LENGTHS, time=TIME, left=left)
    query = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    query[mask] = 100.0
    key = torch.randn(BATCH, 4, DIM, dtype=torch.float64)
    together = module(query, key, query_padding_mask=mask)
    for b in range(BATCH):
        alone = module(query[b, ~mask[b]].unsqueeze(0), key[b : b + 1])
        torch.testing.assert_close(together.output[b, ~mask[b]], alone.output[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", GATED)
def test_a_gate_step_ignores_padding(name, causal):
    """Neither batch norm's statistics nor any output: more padding is no more information."""
    module = build(name, "gate")
    norm = module.gate.norm
    start = norm.running_mean.clone(), norm.running_var.clone()

    def step(extra, rows):
        norm.running_mean.copy_(start[0])
        norm.running_var.copy_(start[1])
        mask = padding(*LENGTHS, *[0] * rows, time=TIME + extra)
        noise = torch.full((BATCH + rows, TIME + extra, DIM), 100.0, dtype=torch.float64)
        noise[:BATCH, :TIME] = torch.where(mask[:BATCH, :TIME, None], noise[:BATCH, :TIME], x)
        out = module(noise, key_padding_mask=mask, is_causal=causal)
        real = out.output[~mask]
        return real, norm.running_mean.clone(), norm.running_var.clone()

    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    plain = step(extra=0, rows=0)
    assert not torch.allclose(plain[1], start[0])
    for extra, rows in ((3, 0), (0, 2)):  # longer rows; rows that are nothing but padding
        for a, b in zip(step(extra, rows), plain, strict=True):
            torch.testing.assert_close(a, b)
