"""Models with rotary positions, grouped keys, RMS norms, gated units and no biases decode and save.

What holds for a single pass of theirs stands in `test_every_model`.
"""

import json
from itertools import product

import pytest
import torch
from test_every_model import MODERN, PAIRS, PLANS, WORDS, build
from tiny import PAD, strengthen, tokens
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, DynamicCache

import headwise as hw
from headwise.models.base import model_class
from headwise.models.parameters import decayed_parameters

SCALED = {
    "rope_type": "llama3",
    "factor": 2.0,
    "original_max_position_embeddings": 8,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 50.0,
}
KINDS = ("causal, modern", "seq2seq, modern")
each_plan = pytest.mark.parametrize("plan", PLANS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def double(kind, plan, **options):
    return build(kind, plan, **options).double()


def prompt(kind, batch=2, time=5):
    """What a call has beside the tokens that are decoded."""
    if "causal" in kind:
        return {}
    mask = torch.ones(batch, time, dtype=torch.long)
    mask[0, -2:] = 0
    return {"input_ids": tokens(batch, time), "attention_mask": mask}


def call(made, kind, given, target, **more):
    name = "input_ids" if "causal" in kind else "decoder_input_ids"
    return made(**given, **{name: target}, **more)


@each_plan
@each_kind
@pytest.mark.parametrize("room", [None, 12])
def test_decoding_step_by_step_equals_decoding_at_once(kind, plan, room):
    made, given, target = double(kind, plan), prompt(kind), tokens(2, 7)
    at_once = call(made, kind, given, target).logits
    cache = made.new_cache() if room is None else made.new_cache(max_length=room)
    parts = target.split([3, 1, 1, 2], 1)
    logits = [call(made, kind, given, part, cache=cache, use_cache=True).logits for part in parts]
    torch.testing.assert_close(torch.cat(logits, 1), at_once)


@each_plan
@pytest.mark.parametrize("left", [False, True])
def test_padding_while_decoding(plan, left):
    made, ids = double("causal, modern", plan), tokens(2, 8)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, slice(0, 2) if left else slice(3, 5)] = 0
    cache, steps = made.new_cache(), []
    for start, end in ((0, 5), (5, 6), (6, 8)):
        part = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end]}
        steps.append(made(**part, cache=cache).logits)
    real = mask.bool()
    for row in range(2):
        alone = made(ids[row, real[row]][None]).logits[0]
        torch.testing.assert_close(torch.cat(steps, 1)[row, real[row]], alone)


@each_plan
@each_kind
@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_with_a_cache_finds_what_one_without_finds(kind, plan, beams):
    alone = {"share_embeddings": False if "causal" in kind else "none"}
    made, given = double(kind, plan, **alone), prompt(kind)
    if "causal" in kind:
        given = {"input_ids": tokens(2, 5)}
        given["input_ids"][0, :2] = PAD
        given["attention_mask"] = (given["input_ids"] != PAD).long()
    how = {"max_new_tokens": 6, "num_beams": beams, "no_repeat_ngram_size": 1, "do_sample": False}
    expected = made.generate(**given, **how, use_cache=False)
    assert torch.equal(made.generate(**given, **how), expected)
    if beams == 1:
        static = made.generate(**given, **how, cache_implementation="static")
        assert torch.equal(static, expected)


@each_plan
@pytest.mark.parametrize("rope", [MODERN["rope_parameters"], SCALED], ids=str)
def test_packed_texts_are_each_text_alone(plan, rope):
    config = hw.CausalLMConfig(
        **{**WORDS, **MODERN, "rope_parameters": rope}, attention=PLANS[plan]
    )
    made = hw.CausalLM(config)
    strengthen(made)
    made = made.double().eval()
    texts = [tokens(1, length) for length in (4, 1, 6)]
    positions = torch.cat([torch.arange(text.size(1)) for text in texts])[None]
    together = made(torch.cat(texts, 1), position_ids=positions).logits
    alone = [made(text).logits for text in texts]
    torch.testing.assert_close(together, torch.cat(alone, 1))
    assert not torch.allclose(made(torch.cat(texts, 1)).logits, together)


@each_plan
def test_positions_count_by_their_distance_alone(plan):
    made, ids = double("causal, modern", plan), tokens(2, 6)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}  # which says: one text
    plain, shifted, spread = (
        made(**given, position_ids=positions).logits
        for positions in (torch.arange(6), torch.arange(6) + 40, 2 * torch.arange(6))
    )
    torch.testing.assert_close(shifted, plain)
    assert not torch.allclose(spread, plain, atol=1e-3)


@each_plan
@each_kind
def test_gradient_checkpointing_changes_nothing(kind, plan):
    gradients = []
    for checkpoints in (False, True):
        made = double(kind, plan).train()
        for module in made.modules():  # which move with each pass
            if isinstance(module, torch.nn.BatchNorm1d):
                module.eval()
        if checkpoints:
            made.gradient_checkpointing_enable()
        torch.manual_seed(2)
        given, target = prompt(kind), tokens(2, 6)
        torch.manual_seed(3)
        call(made, kind, given, target, labels=target).loss.backward()
        gradients.append([p.grad for p in made.parameters()])
    torch.testing.assert_close(*gradients)


# With cross-attention of those systems that decide in it by more than a query.
STEPS = [*product(KINDS[:1], PLANS), *product(KINDS[1:], ("mae", "moa"))]


@pytest.mark.parametrize(("kind", "plan"), STEPS)
def test_a_step_with_a_cache_of_a_fixed_size_is_one_graph(kind, plan):
    torch.compiler.reset()
    made, given, target = build(kind, plan), prompt(kind), tokens(2, 6)
    expected = call(made, kind, given, target).logits
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    cache = made.new_cache(max_length=8)
    with torch.no_grad():
        call(made, kind, given, target[:, :4], cache=cache)
        for t in (4, 5):
            step = call(compiled, kind, given, target[:, t : t + 1], cache=cache)
            torch.testing.assert_close(step.logits[:, 0], expected[:, t], rtol=1e-4, atol=1e-4)


@each_kind
def test_what_is_saved_is_what_was_set(kind, tmp_path):
    made = build(kind, "moa")
    made.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    sizes = WORDS if "causal" in kind else PAIRS
    ours = {**sizes, **MODERN, "attention": PLANS["moa"]}
    ours["rope_parameters"] = {"rope_theta": 50.0, "rope_type": "default"}
    assert {name: saved[name] for name in ours} == ours
    # No name of transformers' for what has one of ours, and nothing that is ours alone.
    others = {*made.config.attribute_map, "_key_heads", "_head_dim"}
    assert not saved.keys() & others
    auto = AutoModelForCausalLM if "causal" in kind else AutoModelForSeq2SeqLM
    loaded, given, target = auto.from_pretrained(tmp_path), prompt(kind), tokens(2, 6)
    expected = call(made, kind, given, target).logits
    torch.testing.assert_close(call(loaded, kind, given, target).logits, expected)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.to_dict() == loaded.config.to_dict()
    again = type(config)(**{k: v for k, v in config.to_dict().items() if k != "model_type"})
    assert again.to_diff_dict() == config.to_diff_dict()
    assert model_class(config)(config).state_dict().keys() == made.state_dict().keys()


def test_heads_of_keys_that_follow_from_the_plan_are_not_saved():
    for plan, heads in (("standard", 4), ("moa", 1)):
        config = hw.CausalLMConfig(**WORDS, attention=PLANS[plan])
        assert config.num_key_value_heads == heads
        assert not config.to_diff_dict().keys() & {"num_key_value_heads", "_key_heads"}


@pytest.mark.parametrize("plan", PLANS)
def test_a_cache_of_transformers_has_as_many_heads_as_keys_have(plan):
    made = build("causal, modern", plan)
    assert made.config.num_key_value_heads == 2
    cache = DynamicCache()
    made(tokens(2, 5), cache=cache, use_cache=True)
    assert {layer.keys.shape for layer in cache.layers} == {(2, 2, 5, 4)}


@each_plan
@each_kind
def test_norms_of_queries_and_keys_take_no_weight_decay(kind, plan):
    made = build(kind, plan)
    decayed = {id(p) for p in decayed_parameters(made)}
    norms = [name for name, _ in made.named_parameters() if "_norm." in name or ".norm" in name]
    assert sum("q_norm" in name for name in norms) >= 2
    spared = [name for name, p in made.named_parameters() if id(p) not in decayed]
    assert set(norms) <= set(spared)
