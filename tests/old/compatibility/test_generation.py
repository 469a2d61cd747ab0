"""transformers: all that `generate()` does."""

import functools

import pytest
import torch
from compatible import PLANS, compatible, tiny_model
from tiny import PAD, VOCABULARY, tokens
from transformers import CompileConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.generation.stopping_criteria import MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from headwise.transformers_internals import CACHE

TOOL = "transformers: `generate()`"
STEPS = 9
KINDS = {"causal": {"share_embeddings": False}, "seq2seq": {"share_embeddings": "none"}}
SMALLER = {"causal": {"layers": 1}, "seq2seq": {"encoder_layers": 1, "decoder_layers": 1}}
END = 2


@functools.cache
def models(system):
    """A language model and an encoder-decoder, which would repeat shared embeddings."""
    return [tiny_model(kind, system, **options) for kind, options in KINDS.items()]


@functools.cache
def smaller_models(system):
    """The same of one layer, with weights of theirs: they predict the same now and then."""
    made = []
    for (kind, options), whole in zip(KINDS.items(), models(system), strict=True):
        small, weights = tiny_model(kind, system, **options, **SMALLER[kind]), whole.state_dict()
        small.load_state_dict({name: weights[name] for name in small.state_dict()})
        made.append(small)
    return made


def generate(model, ids, **options):
    """`STEPS` tokens of which none comes twice, unless asked otherwise: fresh models repeat one."""
    defaults = {"max_new_tokens": STEPS, "no_repeat_ngram_size": 1, "suppress_tokens": [PAD, END]}
    return model.generate(ids, **{**defaults, **options})


@compatible(TOOL, "greedy search, beam search, sampling, `num_return_sequences`, `use_cache=False`")
def test_ways_to_search(system):
    for model in models(system):
        ids = tokens(2, 6)
        for options in (
            {},
            {"num_beams": 3, "num_return_sequences": 2},
            {"do_sample": True, "num_return_sequences": 3, "top_k": 5},
        ):
            outputs = []
            for use_cache in (True, False):
                torch.manual_seed(1)
                outputs.append(generate(model, ids, use_cache=use_cache, **options))
            assert torch.equal(*outputs)
            assert len(outputs[0]) == 2 * options.get("num_return_sequences", 1)


@compatible(TOOL, "prompts of different lengths, padded on the left")
def test_left_padding(system):
    model = models(system)[0]
    ids = tokens(2, 6)
    ids[1, :3] = PAD
    mask = (ids != PAD).long()
    for options in ({}, {"num_beams": 2}, {"cache_implementation": "static"}):
        together = generate(model, ids, attention_mask=mask, **options)
        alone = generate(model, ids[1:, 3:], **options)
        assert torch.equal(together[1, 3:], alone[0])


@compatible(TOOL, "`cache_implementation='static'`")
def test_static_cache(system):
    for model in models(system):
        ids = tokens(2, 6)
        for options in ({}, {"num_beams": 3}):
            expected = generate(model, ids, **options)
            assert torch.equal(
                generate(model, ids, cache_implementation="static", **options), expected
            )


@pytest.mark.slow
@compatible(
    TOOL,
    "`cache_implementation='static'` with `compile_config`: one graph, of one step (PyTorch 2.13; "
    "2.8 and 2.9 make two)",
    needs=("torch>=2.13",),
)
def test_static_cache_of_a_compiled_model(system):
    for model in smaller_models(system):
        torch._dynamo.reset()
        graphs = []

        def backend(graph, _, graphs=graphs):
            graphs.append(graph)
            return graph.forward

        compiling = CompileConfig(backend=backend, mode=None, dynamic=False, fullgraph=True)
        compiling._compile_all_devices = True  # transformers compiles on GPUs alone
        options = {"cache_implementation": "static", "compile_config": compiling}
        for time in (5, 5) if model.config.is_encoder_decoder else (5, 7):
            ids = tokens(2, time)
            made = generate(model, ids, max_cache_len=20, **options)
            assert torch.equal(made, generate(model, ids))
            assert len(graphs) == 1


@compatible(TOOL, "assisted decoding (`assistant_model`)")
def test_assisted_decoding(system):
    for model, assistant in zip(models(system), smaller_models(system), strict=True):
        for seed in range(3):
            torch.manual_seed(seed)
            ids = tokens(1, 6)
            expected = generate(model, ids)
            made = generate(model, ids, assistant_model=assistant, num_assistant_tokens=4)
            assert torch.equal(made, expected)


@compatible(TOOL, "prompt lookup (`prompt_lookup_num_tokens`)")
def test_prompt_lookup(system):
    for model in models(system):
        ids = tokens(1, 4).repeat(1, 4)
        repeats = {"no_repeat_ngram_size": 0, "max_new_tokens": 15}
        expected = generate(model, ids, **repeats)
        made = generate(model, ids, prompt_lookup_num_tokens=3, **repeats)
        assert torch.equal(made, expected)


def go_on(model, ids, so_far, **options):
    """Generates further, from all that was read and generated so far."""
    if not model.config.is_encoder_decoder:
        return generate(model, so_far, **options)
    # By the mask transformers knows that all of it is given, and leaves out what the cache has.
    options |= {"decoder_input_ids": so_far, "decoder_attention_mask": torch.ones_like(so_far)}
    return generate(model, ids, **options)


@compatible(TOOL, "the cache of one call is given to the next, with more tokens")
def test_continuing(system):
    for model in models(system):
        ids, reply = tokens(1, 6), tokens(1, 3)
        whole = generate(model, ids)
        for cache in (model.new_cache(), model.new_cache(max_length=40)):
            options = {CACHE: cache, "return_dict_in_generate": True}
            first = generate(model, ids, max_new_tokens=4, **options)
            assert first[CACHE] is cache
            assert torch.equal(first.sequences, whole[:, : 4 - STEPS])
            second = go_on(model, ids, first.sequences, max_new_tokens=STEPS - 4, **options)
            assert torch.equal(second.sequences, whole)
            said = torch.cat([whole, reply], dim=1)
            third = go_on(model, ids, said, max_new_tokens=4, **options)
            assert torch.equal(third.sequences, go_on(model, ids, said, max_new_tokens=4))


@compatible(TOOL, "`DynamicCache`, `StaticCache`, `EncoderDecoderCache` given as `cache`")
def test_caches_of_transformers(system):
    language_model, seq2seq = models(system)
    config = language_model.config
    ids = tokens(2, 6)
    expected = generate(language_model, ids)
    for cache in (
        DynamicCache(),
        DynamicCache(config=config),
        StaticCache(config=config, max_cache_len=20),
    ):
        assert torch.equal(generate(language_model, ids, **{CACHE: cache}), expected)
        assert cache.get_seq_length() == ids.size(1) + STEPS - 1
    expected = generate(seq2seq, ids)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    assert torch.equal(generate(seq2seq, ids, **{CACHE: cache}), expected)
    assert cache.get_seq_length() == STEPS


@compatible(TOOL, "`output_hidden_states`, `output_attentions`, also with a static cache")
def test_hidden_states_and_attentions(system):
    for model in models(system):
        ids = tokens(2, 6)
        prefix = "decoder_" if model.config.is_encoder_decoder else ""
        options = {"output_hidden_states": True, "output_attentions": True, "max_new_tokens": 3}
        grown, fixed = (
            generate(model, ids, return_dict_in_generate=True, **options, **cache)
            for cache in ({}, {"cache_implementation": "static"})
        )
        for step in range(3):
            hidden = [made[f"{prefix}hidden_states"][step][-1] for made in (grown, fixed)]
            torch.testing.assert_close(*hidden, rtol=1e-4, atol=1e-5)
            weights = [made[f"{prefix}attentions"][step][-1] for made in (grown, fixed)]
            seen = weights[0].size(-1)
            torch.testing.assert_close(weights[0], weights[1][..., :seen], rtol=1e-4, atol=1e-5)
            assert not weights[1][..., seen:].any()


@compatible(TOOL, "prompts as `inputs_embeds`")
def test_embeddings_for_a_prompt(system):
    for model in models(system):
        ids = tokens(2, 6)
        words = model.get_input_embeddings()(ids)
        expected = generate(model, ids, no_repeat_ngram_size=0)
        for cache in ({}, {"cache_implementation": "static"}):
            made = generate(
                model, None, inputs_embeds=words, no_repeat_ngram_size=0, num_beams=1, **cache
            )
            assert torch.equal(made, expected[:, -made.size(1) :])
            assert made.size(1) >= STEPS


class Collecting(BaseStreamer):
    def __init__(self):
        self.seen = []

    def put(self, value):
        self.seen += value.flatten().tolist()

    def end(self):
        self.seen.append("end")


class Only(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores.masked_fill(torch.arange(VOCABULARY) % 2 == 0, float("-inf"))


@compatible(TOOL, "`streamer`, `logits_processor`, `stopping_criteria`, `prefill_chunk_size`")
def test_what_is_called(system):
    for model in models(system):
        ids, streamer = tokens(1, 6), Collecting()
        expected = generate(model, ids, logits_processor=LogitsProcessorList([Only()]))
        assert (expected[:, -STEPS:] % 2 == 1).all()
        made = generate(
            model,
            ids,
            logits_processor=LogitsProcessorList([Only()]),
            stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(expected.size(1) - 3)]),
            streamer=streamer,
            prefill_chunk_size=2,
        )
        assert torch.equal(made, expected[:, :-3])
        assert streamer.seen == [*made.flatten().tolist(), "end"]


NO_OTHER = "expected 'dynamic' or 'static': the systems of headwise keep more than keys and values"
NO_PAGES = "has no continuous batching, which keeps keys and values alone in pages"


@compatible(
    TOOL,
    "`cache_implementation='offloaded'`, `'quantized'`",
    refused=dict.fromkeys(PLANS, NO_OTHER),
)
@pytest.mark.parametrize("kind", ["offloaded", "quantized"])
def test_other_caches(system, kind):
    for model in models(system):
        generate(model, tokens(1, 3), cache_implementation=kind)


@compatible(
    TOOL,
    "continuous batching: `generate_batch`, `cache_implementation='paged'`",
    refused=dict.fromkeys(PLANS, NO_PAGES),
)
def test_continuous_batching(system):
    for model in models(system):
        model.generate_batch(tokens(2, 3).tolist())
