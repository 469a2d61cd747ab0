"""Whole models: no later token, no padding and no cache changes what they compute."""

from functools import cache

import test_every_model as every
import tiny
import torch
from fuzzing import cuts, examples, seeds
from hypothesis import given
from hypothesis import strategies as st
from tiny import PAD, VOCABULARY, tokens

import headwise as hw
from headwise.models.base import HeadwiseModel
from headwise.models.cache import DecodingCache

SEEN_AHEAD = 2  # frames that the front of the speech model reads ahead
CAUSAL = [(kind, plan) for kind, plan in every.EVERYTHING if kind in every.CAUSAL]
DECODERS = [(kind, plan) for kind, plan in CAUSAL if kind != "speech"]
each_model = st.sampled_from([model for model in every.EVERYTHING if model[0] != "seq2seq"])
plans = st.sampled_from(sorted(tiny.PLANS))


# Built once, in double precision: where the numbers of two experts nearly tie, rounding decides.
@cache
def build(kind: str, plan: str) -> HeadwiseModel:
    return every.build(kind, plan).double()


@cache
def translator(plan: str) -> hw.Seq2SeqLM:
    return tiny.model(tiny.PLANS[plan], share_embeddings="none").double()


def drawn_inputs(kind: str, batch: int, time: int) -> tuple[str, torch.Tensor]:
    if kind == "speech":
        return "inputs", torch.rand(batch, time, 9, dtype=torch.float64)
    return "input_ids", tokens(batch, time)


@given(st.data(), seeds, st.sampled_from(CAUSAL), st.integers(1, 3), st.integers(2, 9))
@examples(suite=30, long=60)
def test_a_later_token_changes_no_earlier_output(data, seed, model, batch, time):
    kind, made = model[0], build(*model)
    torch.manual_seed(seed)
    name, x = drawn_inputs(kind, batch, time)
    first = data.draw(st.integers(1, time - 1), label="first token that changes")
    changed = x.clone()
    changed[:, first:] = drawn_inputs(kind, batch, time)[1][:, first:]
    past = max(0, first - (SEEN_AHEAD if kind == "speech" else 0))
    with torch.no_grad():
        before, after = made(**{name: x}).logits, made(**{name: changed}).logits
    torch.testing.assert_close(after[:, :past], before[:, :past])


@given(st.data(), seeds, each_model, st.integers(1, 3), st.integers(1, 8), st.integers(0, 3))
@examples(suite=40, long=80)
def test_more_padding_changes_nothing(data, seed, model, batch, time, more):
    """Behind; before too, where a model may have it there: where it goes on from a prompt."""
    kind, made = model[0], build(*model)
    torch.manual_seed(seed)
    left = kind.startswith(("causal", "adaptive")) and data.draw(st.booleans(), label="left")
    lengths = data.draw(st.lists(st.integers(1, time), min_size=batch, max_size=batch))
    name, x = drawn_inputs(kind, batch, time + more)
    outputs = []
    for width in (time, time + more):
        real = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
        given = x[:, :width].clone()
        if left:
            real, given = real.flip(1), given.flip(1)
        given = given.masked_fill(
            ~real.view(*real.shape, *[1] * (given.dim() - 2)), 0.0 if kind == "speech" else PAD
        )
        with torch.no_grad():
            out = made(**{name: given, "attention_mask": real.long()})
        whole = out.logits.size(0) == batch and out.logits.dim() == 2
        outputs.append((out.logits if whole else out.logits[real], out.auxiliary_loss))
    torch.testing.assert_close(outputs[1][0], outputs[0][0])
    if outputs[0][1] is not None:
        torch.testing.assert_close(outputs[1][1], outputs[0][1])


@given(st.data(), seeds, st.sampled_from(DECODERS), st.integers(1, 3), st.integers(1, 10))
@examples(suite=30, long=60)
def test_a_language_model_in_pieces(data, seed, model, batch, time):
    """With padding before the tokens, rows reordered and last tokens removed in between."""
    made = build(*model)
    torch.manual_seed(seed)
    real = torch.tensor([[False] * pad + [True] * (time - pad) for pad in _pads(data, batch, time)])
    ids = tokens(batch, time).masked_fill(~real, PAD)
    remembered = made.new_cache() if data.draw(st.booleans(), label="own cache") else None
    recording = remembered is not None and data.draw(st.booleans(), label="removes tokens")
    if recording:
        remembered.activate_past_recording()
    start = 0
    for length in data.draw(cuts(time), label="pieces"):
        if start:
            rows = data.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch))
            remembered.reorder_cache(torch.tensor(rows))
            ids = torch.cat([ids[rows, :start], ids[:, start:]], 1)
            real = torch.cat([real[rows, :start], real[:, start:]], 1)
        if recording:
            refused = tokens(batch, data.draw(st.integers(1, 3), label="removed"))
            mask = torch.cat([real[:, :start], torch.ones_like(refused, dtype=torch.bool)], 1)
            _read(made, refused, mask, remembered)
            remembered.crop(-refused.size(1))
        end = start + length
        got = _read(made, ids[:, start:end], real[:, :end], remembered)
        remembered = got.cache
        with torch.no_grad():
            expected = made(input_ids=ids[:, :end], attention_mask=real[:, :end].long()).logits
        shown = real[:, start:end]
        torch.testing.assert_close(got.logits[shown], expected[:, start:][shown])
        start = end


def _pads(data: st.DataObject, batch: int, time: int) -> list[int]:
    return data.draw(st.lists(st.integers(0, time - 1), min_size=batch, max_size=batch))


@torch.no_grad()
def _read(made: HeadwiseModel, ids: torch.Tensor, mask: torch.Tensor, remembered: DecodingCache):
    return made(input_ids=ids, attention_mask=mask.long(), cache=remembered, use_cache=True)


@given(st.data(), seeds, plans, st.integers(1, 3), st.integers(1, 6), st.integers(2, 7))
@examples(suite=15, long=30)
def test_a_translation_model(data, seed, plan, batch, time, target_time):
    """In pieces; with other tokens behind; with a source that is padded further."""
    made = translator(plan)
    torch.manual_seed(seed)
    lengths = [time - pad for pad in _pads(data, batch, time)]
    source, mask = tiny.padded(lengths, time)
    target = tokens(batch, target_time)
    with torch.no_grad():
        expected = made(source, attention_mask=mask, decoder_input_ids=target).logits
        more = data.draw(st.integers(0, 3), label="more padding")
        beyond = torch.zeros(batch, more, dtype=torch.long)
        wide, wide_mask = torch.cat([source, beyond + PAD], 1), torch.cat([mask, beyond], 1)
        padded = made(wide, attention_mask=wide_mask, decoder_input_ids=target).logits
        torch.testing.assert_close(padded, expected)
        first = data.draw(st.integers(1, target_time - 1), label="first token that changes")
        changed = torch.cat([target[:, :first], tokens(batch, target_time - first)], 1)
        after = made(source, attention_mask=mask, decoder_input_ids=changed).logits
        torch.testing.assert_close(after[:, :first], expected[:, :first])
        remembered, start = None, 0
        for length in data.draw(cuts(target_time), label="pieces"):
            out = made(
                source,
                attention_mask=mask,
                decoder_input_ids=target[:, start : start + length],
                cache=remembered,
                use_cache=True,
            )
            remembered = out.cache
            torch.testing.assert_close(out.logits, expected[:, start : start + length])
            start += length


@given(st.data(), seeds, plans, st.integers(1, 3), st.integers(1, 4))
@examples(suite=8, long=16)
def test_generating_with_the_cache_equals_generating_without(data, seed, plan, batch, beams):
    made = translator(plan)
    torch.manual_seed(seed)
    source, mask = tiny.padded([5 - pad for pad in _pads(data, batch, 5)], 5)
    options = {"max_new_tokens": 6, "num_beams": beams, "no_repeat_ngram_size": 1}
    options["length_penalty"] = data.draw(st.sampled_from([0.0, 1.0, 2.0]))
    written = [
        made.generate(source, attention_mask=mask, use_cache=use_cache, **options)
        for use_cache in (True, False)
    ]
    assert torch.equal(*written)
    assert written[0].max() < VOCABULARY
