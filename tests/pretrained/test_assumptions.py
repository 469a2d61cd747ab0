"""What headwise takes from transformers that its documentation does not promise.

One test for each assumption, with transformers alone: where a new version breaks one, its test says
which. What breaks with it stands in `headwise.transformers_internals` and `headwise.pretrained`.
"""

import inspect
import re
import sys

import pytest
import torch
import transformers as tf
from support.architectures import EIGHT, Pretrained, attentions, build, padding, tokens, width_of
from torch import nn
from transformers import modeling_rope_utils as rope
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Outputs

IDS = torch.tensor([[5, 6, 7, 8]])
CACHE = "cache" if "cache" in Outputs.__dataclass_fields__ else "past_key_values"


@pytest.fixture
def gpt2():
    return build("gpt2")


def test_one_name_of_the_cache(gpt2):
    """In arguments of models and of their attentions, in outputs and in what is generated."""
    cache = DynamicCache()
    assert gpt2(IDS, use_cache=True, **{CACHE: cache})[CACHE] is cache
    how = {"max_new_tokens": 2, "return_dict_in_generate": True, CACHE: DynamicCache()}
    assert gpt2.generate(IDS, **how)[CACHE].get_seq_length() == 5
    for module in (gpt2, build("llama").model.layers[0].self_attn):
        assert CACHE in inspect.signature(module.forward).parameters


def test_a_cache_asks_its_layers_for_all_that_generation_asks_of_it():
    """Layers may be of any class that is registered as theirs."""
    asked = []

    @CacheLayerMixin.register
    class Layer:
        def __getattr__(self, name):
            asked.append(name)
            return lambda *args: 3

    cache, rows = Cache(layers=[Layer(), Layer()]), torch.tensor([0])
    cache.reorder_cache(rows)
    cache.batch_select_indices(rows)
    cache.batch_repeat_interleave(2)
    assert cache.get_seq_length() == 3
    changes = ["reorder_cache", "batch_select_indices", "batch_repeat_interleave"]
    assert asked[:6] == [name for name in changes for _ in range(2)]


def test_generation_asks_a_model_for_its_cache_length_and_masks(monkeypatch, gpt2):
    called = {}

    def noted(name, original):
        def note(*args, **kwargs):
            called[name] = kwargs
            return original(*args, **kwargs)

        return note

    arguments = {
        "_prepare_cache_for_generation": ["generation_config", "model_kwargs", "generation_mode"],
        "_prepare_generated_length": ["generation_config", "has_default_max_length"],
    }
    for name, first in arguments.items():
        original = getattr(GenerationMixin, name)
        assert list(inspect.signature(original).parameters)[1 : len(first) + 1] == first
        monkeypatch.setattr(type(gpt2), name, noted(name, original))
    masks = sys.modules[GenerationMixin.__module__].create_masks_for_generate
    wrapped = staticmethod(noted("create_masks_for_generate", masks))
    monkeypatch.setattr(type(gpt2), "create_masks_for_generate", wrapped, raising=False)
    gpt2.generate(IDS, max_new_tokens=3, cache_implementation="static", disable_compile=True)
    assert set(called) == {*arguments, "create_masks_for_generate"}
    assert {"attention_mask", "inputs_embeds", CACHE} <= set(called["create_masks_for_generate"])


def test_checkpointing_is_switched_on_by_one_method_and_reaches_every_layer(gpt2):
    assert all(isinstance(layer, GradientCheckpointingLayer) for layer in gpt2.transformer.h)
    calls = []

    def function(run, *args, **kwargs):
        calls.append(run)
        return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False, **kwargs)

    switch = gpt2.train()._set_gradient_checkpointing  # noqa: SLF001
    switch(True, gradient_checkpointing_func=function)
    gpt2(IDS, labels=IDS).loss.backward()
    assert len(calls) == 2 and gpt2.transformer.h[0].attn.c_proj.weight.grad is not None


def test_weights_are_drawn_by_one_method_and_loaded_ones_are_marked(tmp_path):
    drawn = []

    class Small(tf.PreTrainedModel):
        config_class = tf.PreTrainedConfig
        base_model_prefix = ""

        def __init__(self, config):
            super().__init__(config)
            self.linear = nn.Linear(2, 2)
            self.post_init()

        def _init_weights(self, module):
            marks = [getattr(p, "_is_hf_initialized", False) for p in module.parameters(False)]
            drawn.append((type(module), marks))

    made = Small(tf.PreTrainedConfig())
    assert (nn.Linear, [False, False]) in drawn
    made.save_pretrained(tmp_path)
    drawn.clear()
    loaded = Small.from_pretrained(tmp_path)
    assert (nn.Linear, [False, False]) not in drawn
    assert torch.equal(loaded.linear.weight, made.linear.weight)
    assert loaded.linear.weight._is_hf_initialized  # noqa: SLF001


def test_a_configuration_is_a_data_class_and_takes_keys_of_others(tmp_path):
    names = set(tf.PreTrainedConfig.__dataclass_fields__)
    assert {"architectures", "id2label", "return_dict", "transformers_version"} <= names
    tf.GPT2Config(mine={"a": [1]}).save_pretrained(tmp_path)
    assert tf.AutoConfig.from_pretrained(tmp_path).mine == {"a": [1]}


def test_a_subclass_made_on_the_fly_is_loaded_into_smaller_maps(tmp_path, gpt2):
    """Weights are read into what the constructor has made."""
    layer = gpt2.transformer.h[0].mlp
    layer.c_fc.weight = nn.Parameter(layer.c_fc.weight[:, :4].clone())
    layer.c_fc.bias = nn.Parameter(layer.c_fc.bias[:4].clone())
    gpt2.save_pretrained(tmp_path)

    def start(model, config):
        tf.GPT2LMHeadModel.__init__(model, config)
        model.transformer.h[0].mlp.c_fc = tf.pytorch_utils.Conv1D(4, 16)

    smaller = type("GPT2LMHeadModel", (tf.GPT2LMHeadModel,), {"__init__": start})
    loaded = smaller.from_pretrained(tmp_path)
    assert torch.equal(loaded.transformer.h[0].mlp.c_fc.weight, layer.c_fc.weight.float())


@pytest.mark.parametrize("name", EIGHT)
@torch.no_grad()
def test_attentions_get_hidden_states_first_and_call_their_projection_once(name):
    """With all heads joined, one behind another, in a layer that a number in its path counts."""
    model, calls = build(name), []
    for path, projection in attentions(model).items():
        assert re.search(r"\.\d\.", path)
        attention = model.get_submodule(path)
        first = next(iter(inspect.signature(attention.forward).parameters))
        assert first == "hidden_states"
        projection.register_forward_pre_hook(lambda each, args: calls.append((each, args)))
    this = Pretrained(name, model)
    this(this.draw(3, 5, 0))
    assert [each for each, _ in calls] == list(attentions(model).values())
    for each, (heads, *others) in calls:
        assert heads.shape == (3, 5, width_of(each)) and not others


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
@torch.no_grad()
def test_masks_are_true_or_zero_at_what_is_attended(name, kind):
    """`(batch, 1, queries, keys)`; and padding is hidden from all, itself too."""
    model, masks = build(name), []
    model.set_attn_implementation(kind)
    attention = model.get_submodule(next(iter(attentions(model))))
    where = list(inspect.signature(attention.forward).parameters)
    argument = next(each for each in where if each in ("attention_mask", "mask"))

    def note(_, args, kwargs):
        masks.append(dict(zip(where, args, strict=False), **kwargs)[argument])

    attention.register_forward_pre_hook(note, with_kwargs=True)
    hidden = padding(3, 5)
    given = {"input_ids": tokens(3, 5), "attention_mask": (~hidden).long()}
    model(**given, **({"decoder_input_ids": tokens(3, 2)} if name == "t5" else {}))
    seen = masks[0] if masks[0].dtype == torch.bool else masks[0] > -1e4
    seen = seen.expand(-1, 1, 5, -1)[:, 0]
    expected = ~hidden[:, None].expand(-1, 5, -1)
    expected = expected.tril() if name in ("gpt2", "llama") else expected
    assert torch.equal(seen[~hidden], expected[~hidden])
    assert torch.equal(seen.diagonal(dim1=1, dim2=2), ~hidden)


def test_eager_attention_gives_its_weights_and_is_asked_of_each_configuration():
    """The encoder of an encoder-decoder model may have a copy of its configuration."""
    model = build("bert to bert")
    for module in model.modules():
        if isinstance(getattr(module, "config", None), tf.PreTrainedConfig):
            vars(module.config)["_attn_implementation_internal"] = "eager"
    out = model(input_ids=IDS, decoder_input_ids=IDS, output_attentions=True)
    for weights in (out.encoder_attentions, out.decoder_attentions, out.cross_attentions):
        assert [each.shape for each in weights] == [(1, 4, 4, 4)] * 2
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(1, 4, 4))


def test_a_type_of_loss_says_whether_labels_are_shifted():
    kinds = {"bert": "ForMaskedLM", "llama": "ForCausalLM"}
    assert {name: build(name).loss_type for name in kinds} == kinds


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_rotary_positions_are_scaled_by_functions_of_a_configuration(kind):
    given = {"rope_type": kind, "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
    given |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 128}
    config = tf.LlamaConfig(**sizes, rope_parameters=given)
    rates, scale = rope.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    plain = 500.0 ** -(torch.arange(0, 16, 2) / 16)
    assert rates.shape == (8,) and (scale != 1) == (kind == "yarn")
    torch.testing.assert_close(rates[-1], plain[-1] / 4)  # the slowest turns are the scaled ones


def test_bytes_are_written_as_characters_that_come_back():
    table = bytes_to_unicode()
    assert sorted(table) == list(range(256)) and len(set(table.values())) == 256
    assert table[ord("a")] == "a" and not any(character.isspace() for character in table.values())


def test_the_auto_classes_stand_where_they_are_watched_for():
    assert tf.AutoConfig.__module__ == "transformers.models.auto.configuration_auto"
