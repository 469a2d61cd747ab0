"""Under a causal mask no later token changes an earlier output, and padding changes none."""

import pytest
import torch
from systems import DIM, GATED, SYSTEMS, as_float, padding

from headwise.ops.masks import causal_mask

BATCH, TIME = 3, 6
CAUSAL = causal_mask(TIME, TIME)
CAUSAL_MASKS = {
    "is_causal": {"is_causal": True},
    "boolean": {"attn_mask": CAUSAL},
    "float": {"attn_mask": as_float(CAUSAL)},
    "float of -1e9": {"attn_mask": CAUSAL * -1e9},
    "float of the least number": {"attn_mask": CAUSAL * torch.finfo(torch.float32).min},
    "4-D": {"attn_mask": CAUSAL.expand(BATCH, 1, TIME, TIME)},
    "narrower": {"attn_mask": CAUSAL | ~causal_mask(TIME, TIME, offset=-3)},
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


@pytest.mark.parametrize("step", [None, *STEPS])
def test_causal_queries_of_a_cross_attention_see_no_later_query(step):
    module = build("mae causal queries", step)
    query, key = torch.randn(2, BATCH, TIME, DIM, dtype=torch.float64)
    before = run(module, query, key).output
    changed = query.clone()
    changed[:, 3:] += 1
    after = run(module, changed, key).output
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=1e-12, atol=1e-12)


def test_without_causal_queries_the_gate_of_a_cross_attention_sees_all_queries():
    """The paper's gate, where it is no leak; and the proof that the tests above can fail."""
    module = build("mae-7", None)
    query, key = torch.randn(2, BATCH, TIME, DIM, dtype=torch.float64)
    changed = query.clone()
    changed[:, 3:] += 1
    assert not torch.allclose(module(query, key).output[:, :3], module(changed, key).output[:, :3])


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_gate_forgets_what_lies_before_its_window(window):
    module = build("mae-7", None, gate_window=window)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    changed = x.clone()
    changed[:, 0] += 1
    before = module(x, is_causal=True).routing.weights
    after = module(changed, is_causal=True).routing.weights
    torch.testing.assert_close(after[:, window:], before[:, window:])
    for t in range(window):
        assert not torch.allclose(after[:, t], before[:, t])


LENGTHS = (6, 2, 4)


@pytest.mark.parametrize("form", ["boolean", "float", "float of -1e9"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_padded_batch_equals_each_sequence_alone(name, left, causal, form):
    module = build(name, None)
    mask = padding(*LENGTHS, time=TIME, left=left)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    x[mask] = 100.0  # what stands at padding must not matter
    given = {"boolean": mask, "float": as_float(mask), "float of -1e9": mask * -1e9}[form]
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


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("name", ["moa", "moa dense", "moh"])
def test_padding_is_left_out_of_the_losses(name, cross):
    module = build(name, None)
    mask = padding(*LENGTHS, time=TIME, left=True)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64)
    if cross:
        loss = module(x, x + 1, query_padding_mask=mask).routing.loss
    else:
        loss = module(x, key_padding_mask=mask).routing.loss
    tokens = x[~mask].unsqueeze(0)  # the real tokens as one sequence
    torch.testing.assert_close(loss, module(tokens).routing.loss)
    assert not torch.isclose(loss, module(x).routing.loss)


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


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_sequences_of_padding_alone_are_finite(name, train):
    module = build(name, "joint" if train else None, dropout=0.1)
    x = torch.randn(BATCH, TIME, DIM, dtype=torch.float64, requires_grad=True)
    for mask in (padding(0, 0, 0, time=TIME), padding(3, 0, 6, time=TIME)):
        for given in (mask, as_float(mask)):
            out = module(x, key_padding_mask=given, need_weights=True)
            assert out.output.isfinite().all()
            assert out.weights.isfinite().all()
            total = out.output.sum() + (0 if out.routing is None else out.routing.weights.sum())
            if out.routing is not None and out.routing.loss is not None:
                total = total + out.routing.loss
            total.backward()
            for parameter in (x, *module.parameters()):
                assert parameter.grad is None or parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", ["moa", "moa dense", "moh"])
def test_without_real_tokens_the_losses_are_zero(name):
    out = build(name, "joint")(
        torch.randn(2, 3, DIM).double(), key_padding_mask=padding(0, 0, time=3)
    )
    assert out.routing.loss == 0
