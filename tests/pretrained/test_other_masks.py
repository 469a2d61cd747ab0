"""Gates over a pretrained model see what its attention masks let them see, whatever these are."""

import random

import pytest
import torch
from architectures import inputs, tiny
from gated import train_at_random

import headwise as hw
from headwise.transformers_internals import CACHE

TIME = 6
ROW = torch.arange(TIME)
CAUSAL = ROW.unsqueeze(1) < ROW
MASKS = {
    "prefix": CAUSAL & (ROW >= 3),
    "chunked": ROW.unsqueeze(1) // 2 < ROW // 2,
    "block-diagonal": (ROW.unsqueeze(1) < 2) != (ROW < 2),
    "block-diagonal, causal": ((ROW.unsqueeze(1) < 2) != (ROW < 2)) | CAUSAL,
}


def outputs(model, tokens, blocked, form):
    model.config.use_cache = False  # beside a cache packed texts are an error
    mask = (~blocked)[None, None]
    if form == "float":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    elif form == "float of -1e4":
        mask = ~mask * -1e4
    return model(input_ids=tokens, attention_mask=mask.expand(len(tokens), -1, -1, -1)).logits


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("name", "form"),
    [("bert", "float"), ("bert", "float of -1e4"), ("llama", "boolean"), ("mistral", "float")],
)
@torch.no_grad()
def test_what_a_mask_hides_changes_no_output(name, mask, form):
    """In one layer: further ones would see what it lets through to others."""
    layers = tiny(name).config.num_hidden_layers
    model = train_at_random(hw.gate_heads(tiny(name), layers=[layers - 1]))
    plain, blocked = tiny(name), MASKS[mask]
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "head_gates" not in k})
    tokens = inputs(model, random.Random(0), batch=1, time=TIME, side="right")["input_ids"]
    tokens = tokens.clamp(min=5)
    before = outputs(model, tokens, blocked, form)
    many = tokens.repeat(TIME, 1)
    many[ROW, ROW] = (many[ROW, ROW] - 4) % 30 + 5
    changed = (outputs(model, many, blocked, form) - before).abs().amax(-1) > 1e-4
    expected = (outputs(plain, many, blocked, form) - outputs(plain, tokens, blocked, form)).abs()
    assert torch.equal(changed, expected.amax(-1) > 1e-4)


@torch.no_grad()
def test_a_text_goes_on_behind_a_prefix_that_sees_itself():
    model = train_at_random(hw.gate_heads(tiny("llama")))
    tokens = torch.randint(5, 30, (2, TIME + 2))
    whole = torch.ones(TIME + 2, TIME + 2, dtype=torch.bool).triu(1)
    whole[:TIME, :TIME] = False
    expected = outputs(model, tokens, whole, "boolean")
    seen = (~whole)[None, None].expand(2, -1, -1, -1)
    first = model(tokens[:, :TIME], attention_mask=seen[..., :TIME, :TIME], use_cache=True)
    steps, cache = [first.logits], first[CACHE]
    for t in (TIME, TIME + 1):
        step = model(tokens[:, t : t + 1], use_cache=True, **{CACHE: cache})
        steps.append(step.logits)
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_gates_over_a_window_that_slides():
    """The model sees the last eight positions; so do gates with such a window, others say so."""
    tokens = torch.randint(5, 30, (1, 12))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] - 4) % 30 + 5

    def both(**options):
        model = train_at_random(hw.gate_heads(tiny("mistral"), layers=[0], **options)).eval()
        gates = []
        with hw.record(model) as decisions:
            for given in (tokens, changed):
                model(given)
            (routings,) = decisions.values()
            gates = [routing.weights for routing in routings]
        return gates[0], gates[1]

    with pytest.warns(UserWarning, match="pass gate_window=8, or less, to gate_heads"):
        before, after = both()
    assert not torch.equal(before[:, -1], after[:, -1])
    before, after = both(gate_window=8)
    assert torch.equal(before[:, 8:], after[:, 8:])
    assert not torch.equal(before[:, 7], after[:, 7])
