"""Gates of causal models while they generate: what they remember follows the cache."""

import copy
import random
import warnings

import pytest
import torch
from architectures import GENERATING, inputs, source, tiny, tiny_sizes
from gated import train_at_random
from transformers import CompileConfig, DynamicCache, StaticCache

import headwise as hw
from headwise.transformers_internals import CACHE

NEW = 8


def trained(name: str, **options) -> torch.nn.Module:
    return train_at_random(hw.gate_heads(tiny(name), **options))


def generate(model, read, **options):
    torch.manual_seed(0)
    made = model.generate(
        **read, max_new_tokens=NEW, output_logits=True, return_dict_in_generate=True, **options
    )
    return made.sequences, torch.stack(made.logits)


def check_same(model, read, **options):
    """The same texts and logits come with a cache and without."""
    static = ("cache_implementation", "compile_config")
    expected = {key: value for key, value in options.items() if key not in static}
    texts, logits = generate(model, read, use_cache=True, **options)
    expected_texts, expected_logits = generate(model, read, use_cache=False, **expected)
    assert torch.equal(texts, expected_texts)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_cache_changes_nothing(name, side):
    model = trained(name)
    read = source(model, random.Random(0), side=side)
    left: list[dict] = [{"num_beams": 3}, {"cache_implementation": "static"}]
    for options in left if side == "left" else [{"do_sample": True}]:
        check_same(model, read, **options)


# transformers takes nothing back from a model whose layers may be linear.
@pytest.mark.parametrize("name", [name for name in GENERATING if name != "qwen3-next"])
def test_tokens_that_are_taken_back_leave_no_trace(name):
    model = trained(name)
    read = source(model, random.Random(0), batch=1)
    helper = trained(name, gate_hidden_dim=5)
    texts, _ = generate(model, read, use_cache=False)
    if name != "whisper":  # its own generate() has no prompt to look up
        assert torch.equal(generate(model, read, prompt_lookup_num_tokens=4)[0], texts)
    assert torch.equal(generate(model, read, assistant_model=helper)[0], texts)


@pytest.mark.parametrize("kind", ["dynamic", "lazy", "static"])
def test_steps_of_several_tokens(kind):
    model = trained("gpt2")
    config = model.config
    cache = {
        "dynamic": lambda: DynamicCache(config=config),
        "lazy": DynamicCache,
        "static": lambda: StaticCache(config=config, max_cache_len=16),
    }[kind]()
    given = inputs(model, random.Random(0), time=9, side="left")
    mask = given["attention_mask"]
    steps = [(0, 4), (4, 5), (5, 8), (8, 9)]
    real = mask.bool()
    whole = model(**given).logits
    for _ in range(2):
        parts = [
            model(
                input_ids=given["input_ids"][:, start:end],
                attention_mask=mask[:, :end],
                position_ids=torch.arange(start, end).unsqueeze(0),
                **{CACHE: cache},
            ).logits
            for start, end in steps
        ]
        torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real])
        cache.reset()  # and once more


@torch.no_grad()
def test_rows_of_a_cache_and_its_copies():
    model = trained("gpt2")
    tokens = inputs(model, random.Random(0), batch=2, time=7)["input_ids"]
    cache = DynamicCache()
    model(input_ids=tokens[:, :4], **{CACHE: cache})
    copied = copy.deepcopy(cache)
    copied.batch_repeat_interleave(2)
    copied.batch_select_indices(torch.tensor([3, 1, 0]))
    copied.reorder_cache(torch.tensor([2, 1, 0]))
    rows = torch.tensor([0, 0, 1])
    for each, of in ((copied, rows), (cache, torch.tensor([0, 1]))):
        whole = model(input_ids=tokens[of]).logits[:, 4:]
        step = model(input_ids=tokens[of, 4:], **{CACHE: each}).logits
        torch.testing.assert_close(step, whole)


def test_going_back():
    model = trained("llama")
    tokens = inputs(model, random.Random(0), batch=2, time=9)["input_ids"]
    whole = model(input_ids=tokens).logits
    cache = DynamicCache(config=model.config)
    model(input_ids=tokens[:, :3], **{CACHE: cache})
    with pytest.raises(ValueError, match="activate_past_recording"):
        cache.crop(-1)
    cache = DynamicCache(config=model.config)
    model(input_ids=tokens[:, :3], **{CACHE: cache})
    cache.activate_past_recording()
    model(input_ids=tokens[:, 3:4], **{CACHE: cache})
    model(input_ids=tokens[:, :4], **{CACHE: cache})  # four others, which are taken back
    cache.crop(-4)
    step = model(input_ids=tokens[:, 4:], **{CACHE: cache}).logits
    torch.testing.assert_close(step, whole[:, 4:])


@torch.no_grad()
@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_a_cache_that_was_filled_before_the_gates_came_gives_a_warning(kind):
    """Of systems that remember: what they have not seen they cannot know."""
    model, tokens = tiny("gpt2").eval(), torch.tensor([[3, 1, 4, 1, 5]])
    size = {"max_cache_len": 16} if kind is StaticCache else {}
    before, another = (kind(config=model.config, **size) for _ in range(2))
    for cache in (before, another):
        model(tokens[:, :3], **{CACHE: cache})
    hw.gate_heads(model)
    with pytest.warns(UserWarning, match="holds 3 positions that the gates over heads have not"):
        model(tokens[:, 3:], **{CACHE: before})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(tokens[:, 3:4], **{CACHE: before})  # once is enough
        hw.gate_heads(hw.remove_gates(model), "gated")  # decides at each position by that alone
        model(tokens[:, 3:], **{CACHE: another})


@torch.no_grad()
def test_compiled_steps():
    """Steps with a cache of a fixed size are one graph, and no step needs another."""
    model = train_at_random(hw.gate_heads(tiny("gpt2", sizes={**tiny_sizes(), "layers": 1})))
    read = source(model, random.Random(0), side="left")
    compiling = CompileConfig(backend="aot_eager", mode=None, fullgraph=True)
    compiling._compile_all_devices = True  # as it is set for GPUs
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    check_same(model, read, cache_implementation="static", compile_config=compiling)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
