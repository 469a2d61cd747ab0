"""The caches that a model with a decoder makes and takes, and `generate()` with them."""

import pytest
import tiny
import torch
from test_causal_lm import model as language_model
from tiny import END, MOA, PAD, PLANS, padded, tokens
from transformers import AutoModel
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    StaticCache,
)

from headwise.models.cache import DecodingCache
from headwise.transformers_internals import CACHE


def prefix(layers, heads=4, width=4, time=3, batch=2):
    """Keys and values of positions that no model has read."""
    return DynamicCache(tuple(torch.randn(2, batch, heads, time, width) for _ in range(layers)))


def test_an_empty_cache_of_transformers_shares_its_layers_and_can_be_given_again():
    made, ids = language_model("mae"), tokens(2, 7)
    at_once = made(ids).logits
    for given in (DynamicCache(), StaticCache(config=made.config, max_cache_len=9)):
        logits = [made(part, cache=given, use_cache=True).logits for part in ids.split([3, 4], 1)]
        torch.testing.assert_close(torch.cat(logits, 1), at_once, rtol=1e-4, atol=1e-4)
        assert given.get_seq_length() == 7
        assert given.get_max_length() == (9 if type(given) is StaticCache else -1)
        own = made.own_cache(given)
        assert isinstance(own, DecodingCache) and own.layers == given.layers
        assert own.self_attention == own.layers and own.cross_attention == []


@pytest.mark.parametrize(
    ("plan", "given", "said"),
    [
        ("standard", prefix(3), "a DynamicCache that holds 3 layers, expected a DynamicCache of 2"),
        ("standard", prefix(2, heads=2), r"heads and dimensions \(2, 4\) in layer 0, expected "),
        ({"decoder_self": MOA}, prefix(2), r"\(4, 4\) in layer 0, expected \(1, 4\), those of its"),
        (
            {"decoder_self": {**MOA, "layers": [1]}},
            prefix(2),
            r"\(4, 4\) in layer 1, expected \(1, 4\), .* token_dim the product",
        ),
    ],
)
def test_a_prefix_of_another_size_is_an_error(plan, given, said):
    with pytest.raises(ValueError, match=said):
        language_model(plan)(tokens(2, 5), cache=given)


def offloaded():
    """A cache on another device. To make one as such needs a GPU where PyTorch is built for one."""
    cache = DynamicCache()
    cache.offloading = True
    return cache


@pytest.mark.parametrize(
    "given",
    [Cache(layer_class_to_replicate=DynamicLayer), offloaded(), ((1, 2),)],
    ids=["of its own", "offloaded", "tuple"],
)
def test_any_other_cache_is_an_error(given):
    with pytest.raises(TypeError, match=r"expected what .*new_cache\(\) returns"):
        language_model()(tokens(2, 5), cache=given)


def test_generate_takes_one_kind_of_cache():
    made, ids = language_model(), tokens(1, 3)
    with pytest.raises(ValueError, match="cache_implementation is 'static', expected one of them"):
        made.generate(ids, **{CACHE: made.new_cache()}, cache_implementation="static")
    with pytest.raises(ValueError, match="cache_implementation is 'offloaded', expected 'dynamic'"):
        made.generate(ids, cache_implementation="offloaded")
    with pytest.raises(NotImplementedError, match="CausalLM has no continuous batching"):
        made.generate(ids, cache_implementation="paged")


def test_a_cache_of_a_fixed_size_and_learned_positions():
    made = language_model(positions="learned", max_positions=8, max_length=7)
    options = {"cache_implementation": "static", "do_sample": False, "min_new_tokens": 3}
    assert made.generate(tokens(1, 6), max_new_tokens=3, **options).shape == (1, 9)
    with pytest.raises(ValueError, match="is to have 9 tokens, expected at most 8"):
        made.generate(tokens(1, 6), max_new_tokens=4, **options)
    padded = torch.tensor([[0, 5, 6, 7, 8, 9], [0, 0, 6, 7, 8, 9]])  # padding takes no position
    mask = (padded != 0).long()
    assert made.generate(padded, attention_mask=mask, max_new_tokens=4, **options).shape == (2, 10)
    cache = made.new_cache(12)
    made(padded, attention_mask=mask, cache=cache)
    seen = torch.cat([mask, mask.new_ones(2, 5)], 1)
    made(padded[:, 2:5], attention_mask=seen[:, :9], cache=cache)
    with pytest.raises(ValueError, match="a sequence has 10 tokens, expected at most 8"):
        made(padded[:, 4:], attention_mask=seen, cache=cache)
    assert cache.get_seq_length() == 9


def test_a_cache_of_a_fixed_size_takes_a_mask_of_what_has_been_seen_or_of_all():
    made, ids = language_model(), tokens(2, 6)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    cache = made.new_cache(8)
    made(ids[:, :5], attention_mask=mask[:, :5], cache=cache)
    with pytest.raises(ValueError, match=r"\(2, 1\), expected \(batch, time\) = \(2, 6\)"):
        made(ids[:, 5:], attention_mask=mask[:, 5:], cache=cache)
    whole = torch.cat([mask, mask.new_ones(2, 2)], 1)
    found = made(ids[:, 5:], attention_mask=whole, cache=cache).logits[:, 0]
    expected = made(ids, attention_mask=mask).logits[:, -1]
    torch.testing.assert_close(found, expected)


def test_crop_is_whole_or_changes_nothing():
    made, ids = language_model({"decoder_self": {"system": "mae", "layers": [1]}}), tokens(2, 7)
    cache = made.new_cache()
    made(ids, cache=cache)
    with pytest.raises(ValueError, match="is -2, expected 0 to 0"):
        cache.crop(-2)
    assert [each.keys.size(2) for each in cache.layers] == [7, 7]
    cache = made.new_cache()
    cache.activate_past_recording()
    made(ids, cache=cache)
    cache.crop(5)  # as in transformers 4: how many are left
    assert cache.get_seq_length() == 5
    rest = made(ids[:, 5:], cache=cache).logits
    torch.testing.assert_close(rest, made(ids).logits[:, 5:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [language_model, tiny.model])
def test_models_without_a_head_have_caches_too(make):
    made = make("mae")
    bare = AutoModel.from_config(made.config)
    bare.load_state_dict(made.base_model.state_dict())
    name = "decoder_input_ids" if made.config.is_encoder_decoder else "input_ids"
    source, target = ((tokens(2, 4),) if name == "decoder_input_ids" else ()), tokens(2, 6)
    expected = bare.eval()(*source, **{name: target}).last_hidden_state
    for given in (None, DynamicCache(), bare.new_cache(max_length=9)):
        states, cache = [], given
        for part in target.split([4, 2], 1):
            out = bare(*source, **{name: part}, cache=cache, use_cache=True)
            cache = out.cache
            states.append(out.last_hidden_state)
        torch.testing.assert_close(torch.cat(states, 1), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_cache_of_another_model_or_source_is_an_error():
    ids, source, other = tokens(2, 6), tokens(2, 5), tokens(2, 7)
    mae, standard = language_model("mae"), language_model()
    cache = mae(ids, use_cache=True).cache
    with pytest.raises(ValueError, match=r"a MixtureOfAttentiveExperts, .* new_cache"):
        standard(ids[:, :1], cache=cache)
    with pytest.raises(ValueError, match=f"{CACHE} is for 2 layers, expected 1"):
        tiny.model(decoder_layers=1)(source, decoder_input_ids=ids, cache=standard.new_cache())
    translator = tiny.model("mae")
    out = translator(source, decoder_input_ids=ids[:, :1], use_cache=True)
    given = {"decoder_input_ids": ids[:, 1:2], "cache": out.cache}
    with pytest.raises(ValueError, match="holds the keys of another source"):
        translator(other, **given)


STEPS = 8


def model(plan="standard", **options):
    """With shared embeddings a fresh model would mostly repeat its last token."""
    return tiny.model(plan, share_embeddings="none", **options)


def generate(made, source, mask=None, repeats=False, **options):
    """Sequences in which no token comes twice, unless `repeats`: fresh models like a token most."""
    if not repeats:
        options["no_repeat_ngram_size"] = 1
    return made.generate(
        source,
        attention_mask=mask,
        max_new_tokens=STEPS,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@pytest.mark.parametrize("plan", PLANS)
def test_decoding_step_by_step_equals_decoding_at_once(plan):
    made = model(PLANS[plan])
    source, mask = padded([6, 3], 6)
    target = tokens(2, 7)
    at_once = made(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    assert at_once.cache is None
    for chunks in ([1] * 7, [3, 1, 3]):
        cache, logits, start = None, [], 0
        for length in chunks:
            out = made(
                input_ids=source,
                attention_mask=mask,
                decoder_input_ids=target[:, start : start + length],
                cache=cache,
                use_cache=True,
            )
            cache, start = out.cache, start + length
            logits.append(out.logits)
            assert cache.get_seq_length() == start
        torch.testing.assert_close(torch.cat(logits, 1), at_once.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("plan", PLANS)
def test_a_padded_batch_equals_one_by_one(plan, num_beams):
    made = model(PLANS[plan])
    lengths = [6, 2, 4]
    source, mask = padded(lengths, 6)
    together = generate(made, source, mask, num_beams=num_beams).sequences
    for b, length in enumerate(lengths):
        alone = generate(made, source[b : b + 1, :length], num_beams=num_beams).sequences[0]
        assert torch.equal(together[b, : len(alone)], alone)
        # Greedy search fills up with padding, beam search with the end token, padding being 0.
        assert torch.isin(together[b, len(alone) :], torch.tensor([PAD, END])).all()
