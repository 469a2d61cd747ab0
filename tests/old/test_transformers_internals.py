"""One test for each assumption of `headwise.transformers_internals`, with transformers alone.

When a release of transformers breaks one, its test says which; then that module has to change.
"""

import inspect
import re
import sys
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
import transformers
from accelerate import DistributedType
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)
from transformers import modeling_flash_attention_utils as flash
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headwise import transformers_internals as internals
from headwise.heads.cache import AttentionCache
from headwise.pretrained.memory import GateMemory
from headwise.transformers_internals import CACHE

IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture
def gpt2():
    config = GPT2Config(
        vocab_size=20, n_positions=32, n_embd=8, n_layer=2, n_head=2, eos_token_id=None
    )
    return GPT2LMHeadModel(config).eval()


def test_the_cache_has_one_name_in_models_outputs_and_generation(gpt2):
    assert CACHE in inspect.signature(gpt2.forward).parameters
    cache = DynamicCache()
    out = gpt2(IDS, use_cache=True, **{CACHE: cache})
    assert out[CACHE] is cache
    generated = gpt2.generate(
        IDS, max_new_tokens=2, return_dict_in_generate=True, **{CACHE: DynamicCache()}
    )
    assert generated[CACHE].get_seq_length() == 5
    assert CACHE in inspect.signature(gpt2.prepare_inputs_for_generation).parameters


def test_either_name_of_the_cache_is_taken():
    cache = object()
    others = {"past_key_values": cache, "other": 1}
    assert internals.given_cache(None, others) is cache
    assert others == {"other": 1}
    assert internals.given_cache(cache, {"past_key_values": None}) is cache
    with pytest.raises(TypeError, match="both given, expected one"):
        internals.given_cache(cache, {"past_key_values": cache})


def test_an_output_holds_the_cache_under_both_names():
    from headwise.models.causal_lm import CausalLMOutput

    cache = object()
    out = CausalLMOutput(logits=torch.zeros(1), **{CACHE: cache})
    assert out.cache is out.past_key_values is out[CACHE] is cache
    assert list(out.keys()) == ["logits", CACHE]
    assert BaseModelOutputWithPast(**{CACHE: cache})[CACHE] is cache


@pytest.mark.parametrize("kind", [AttentionCache, GateMemory])
def test_a_cache_of_our_layers_can_do_all_that_generation_asks_of_it(kind):
    """What `generate()` reads of a cache is read, and what it calls is called."""
    source = inspect.getsource(sys.modules[GenerationMixin.__module__])
    asked = set(re.findall(r"\b(?:cache|cache\")\]?\.([a-z_]+)", source))
    asked |= set(re.findall(rf"\b{CACHE}\.([a-z_]+)", source)) - {"layers"}
    calls = {
        "reorder_cache": [torch.tensor([0])],
        "batch_select_indices": [torch.tensor([0])],
        "batch_repeat_interleave": [1],
        "crop": [0],
    }
    assert {"reorder_cache", "crop", "get_seq_length"} <= asked | set(calls)
    # A cache that `generate()` itself makes is asked for these alone.
    of_its_own = {"early_initialization", "self_attention_cache", "cross_attention_cache"}
    for name in sorted((asked | set(calls)) - {"layers"} - of_its_own):
        # A memory of gates stands behind the layers of keys and values.
        cache = Cache(layers=[DynamicLayer() if kind is GateMemory else kind(), kind()])
        zeros = torch.zeros(1, 1, 3, 2)
        for layer in cache.layers:
            if isinstance(layer, AttentionCache):
                assert isinstance(layer, CacheLayerMixin)
                layer.extend(zeros, zeros)
            elif isinstance(layer, DynamicLayer):
                layer.update(zeros, zeros)
        found = getattr(cache, name)
        if callable(found):
            found(*calls.get(name, []))


def test_a_cache_that_makes_its_layers_knows_their_class(gpt2):
    lazy = DynamicCache()
    assert not lazy.layers
    internals.make_layers(lazy, 2)
    assert len(lazy.layers) == 2
    assert torch.equal(
        gpt2(IDS, **{CACHE: lazy}).logits, gpt2(IDS, **{CACHE: DynamicCache()}).logits
    )
    assert len(lazy.layers) == 2


def test_generate_asks_for_cache_length_and_mask(monkeypatch, gpt2):
    """The three hooks are called, with the arguments that `GenerationHooks` reads."""
    hooks = internals.GenerationHooks
    names = ("_prepare_cache_for_generation", "_prepare_generated_length")
    for name in names:
        ours = list(inspect.signature(getattr(hooks, name)).parameters)
        theirs = list(inspect.signature(getattr(GenerationMixin, name)).parameters)
        passed_on = ["others"] if "others" in ours else []
        assert ours == theirs[: len(ours) - len(passed_on)] + passed_on
    called = {}

    def noted(name, original):
        def note(*args, **kwargs):
            called[name] = kwargs
            return original(*args, **kwargs)

        return note

    for name in names:
        monkeypatch.setattr(type(gpt2), name, noted(name, getattr(GenerationMixin, name)))
    # A model that has this method is asked for masks in the place of a function.
    name = "create_masks_for_generate"
    masks = noted(name, sys.modules[GenerationMixin.__module__].create_masks_for_generate)
    monkeypatch.setattr(type(gpt2), name, staticmethod(masks), raising=False)
    gpt2.generate(IDS, max_new_tokens=3, cache_implementation="static", disable_compile=True)
    assert set(called) == {*names, "create_masks_for_generate"}
    assert {"attention_mask", "inputs_embeds", CACHE} <= set(called["create_masks_for_generate"])


def test_a_model_knows_its_implementation_of_attention(gpt2):
    assert internals.attn_implementation(gpt2.config) == "sdpa"
    gpt2.set_attn_implementation("eager")
    assert internals.attn_implementation(gpt2.config) == "eager"


def test_checkpointing_is_switched_on_by_a_method_with_these_arguments(gpt2):
    ours, theirs = (
        list(inspect.signature(kind._set_gradient_checkpointing).parameters)
        for kind in (internals.ModelHooks, PreTrainedModel)
    )
    assert ours == theirs
    layer = gpt2.transformer.h[0]
    assert isinstance(layer, internals.GradientCheckpointingLayer)
    calls = []

    def function(run, *args, **kwargs):
        calls.append(1)
        return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False, **kwargs)

    gpt2.train()._set_gradient_checkpointing(gradient_checkpointing_func=function)
    gpt2(IDS, labels=IDS).loss.backward()
    assert calls == [1, 1]  # its two layers
    assert layer.attn.c_proj.weight.grad is not None


def test_weights_are_drawn_by_a_method_and_loaded_ones_are_marked(tmp_path):
    drawn = []

    class Small(internals.ModelHooks):
        config_class = PreTrainedConfig
        base_model_prefix = ""

        def __init__(self, config):
            super().__init__(config)
            self.empty = nn.Identity()  # without parameters of its own
            self.linear = nn.Linear(2, 2)
            self.post_init()

        def _init_weights(self, module):
            drawn.append((type(module), [internals.is_loaded(p) for p in module.parameters(False)]))

    made = Small(PreTrainedConfig())
    assert (nn.Identity, []) in drawn
    assert (nn.Linear, [False, False]) in drawn
    made.save_pretrained(tmp_path)
    drawn.clear()
    loaded = Small.from_pretrained(tmp_path)
    assert (nn.Identity, []) in drawn
    assert (nn.Linear, [False, False]) not in drawn
    assert internals.is_loaded(loaded.linear.weight)
    assert torch.equal(loaded.linear.weight, made.linear.weight)


def test_a_configuration_is_a_data_class():
    found = internals.config_fields()
    assert {"architectures", "id2label", "return_dict", "transformers_version"} <= found
    assert all(hasattr(PreTrainedConfig(), name) for name in found)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"input_ids": IDS[0], "labels": IDS[0]}


def arguments(folder, **others):
    return TrainingArguments(
        output_dir=str(folder), max_steps=2, use_cpu=True, report_to="none", disable_tqdm=True,
        per_device_train_batch_size=2, **others,
    )  # fmt: skip


def test_a_checkpoint_is_written_in_one_method_and_its_parts_in_others(tmp_path, gpt2):
    read = []

    class Saving(internals.TrainerHooks, Trainer):
        def save_checkpoint(self):
            folder = tmp_path / f"checkpoint-{self.state.global_step}"
            self.save_model(str(folder), _internal_call=True)
            self.save_training_state(folder, "trainer_state.json")
            self.remove_old_checkpoints(tmp_path)

        def load_optimizer(self, file):
            read.append(file)
            super().load_optimizer(file)

    class Plain(Trainer):
        pass

    options = {"save_steps": 1, "save_total_limit": 1}
    Saving(gpt2, arguments(tmp_path, **options), train_dataset=Items()).train()
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint-2"]
    plain = tmp_path / "plain"
    Plain(gpt2, arguments(plain, **options), train_dataset=Items()).train()
    written = {each.name for each in (plain / "checkpoint-2").iterdir()}
    assert {each.name for each in (tmp_path / "checkpoint-2").iterdir()} == written
    for kind in (Plain, Saving):
        trainer = kind(gpt2, arguments(tmp_path), train_dataset=Items())
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert trainer.state.global_step == 2
    assert read == [tmp_path / "checkpoint-2" / "optimizer.pt"]


def test_the_trainer_decides_by_what_a_loss_is_divided(tmp_path, gpt2):
    """A loss that the Trainer does not divide again is one that is scaled."""
    trainer = Trainer(
        gpt2, arguments(tmp_path, gradient_accumulation_steps=2), train_dataset=Items()
    )
    assert internals.loss_is_scaled(trainer, torch.tensor(8))
    assert not internals.loss_is_scaled(trainer, None) or hasattr(trainer, "loss_is_scaled_for_ga")
    trainer.model_accepts_loss_kwargs = False
    assert not internals.loss_is_scaled(trainer, torch.tensor(8)) or hasattr(
        trainer, "loss_is_scaled_for_ga"
    )
    trainer.compute_loss_func = lambda outputs, labels, **_: outputs.loss
    assert internals.loss_is_scaled(trainer, torch.tensor(8))


def test_a_trainer_puts_a_batch_on_its_device(tmp_path, gpt2):
    trainer = Trainer(gpt2, arguments(tmp_path), train_dataset=Items())
    batch = internals.prepared_inputs(trainer, {"input_ids": IDS})
    assert torch.equal(batch["input_ids"], IDS)
    assert batch["input_ids"].device == trainer.args.device


@pytest.mark.parametrize("shifts", [True, False])
def test_a_type_of_loss_tells_the_trainer_whether_labels_are_shifted(tmp_path, gpt2, shifts):
    """Then the first label is not counted among those of a step."""
    gpt2.loss_type = internals.SHIFTED_LOSS if shifts else "ForMaskedLM"
    assert internals.shifts_labels(gpt2) == shifts
    trainer = Trainer(gpt2, arguments(tmp_path), train_dataset=Items())
    _, items = trainer.get_batch_samples(
        iter(trainer.get_train_dataloader()), 2, torch.device("cpu")
    )
    assert items == 4 * (3 if shifts else 4)


def test_smoothed_labels_are_shifted_for_classes_that_a_table_names(tmp_path, monkeypatch, gpt2):
    """The Trainer asks its smoother so, which stands in an attribute and can be replaced."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    class Ours(GPT2LMHeadModel):
        pass

    asked = []

    def wrap(smoother):
        def smooth(outputs, labels, shift_labels=False, num_items_in_batch=None):
            asked.append((shift_labels, num_items_in_batch))
            return smoother(
                outputs, labels, shift_labels=shift_labels, num_items_in_batch=num_items_in_batch
            )

        return smooth

    gpt2.__class__ = Ours
    monkeypatch.setitem(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "another", "Another")  # undone later
    trainer = Trainer(gpt2, arguments(tmp_path, label_smoothing_factor=0.1))
    internals.wrap_label_smoother(trainer, wrap)
    batch = {"input_ids": IDS, "labels": IDS}
    trainer.compute_loss(gpt2, dict(batch), num_items_in_batch=7)
    internals.shift_smoothed_labels("another", Ours)
    trainer.compute_loss(gpt2, dict(batch), num_items_in_batch=7)
    assert asked == [(False, 7), (True, 7)]
    plain = Trainer(gpt2, arguments(tmp_path))
    internals.wrap_label_smoother(plain, wrap)
    assert plain.label_smoother is None


def test_the_auto_classes_stand_where_they_are_watched_for():
    from headwise.auto_classes import _AUTO_CLASSES

    assert transformers.AutoConfig.__module__ == _AUTO_CLASSES


def test_attention_modules_of_every_kind_pass_the_cache_by_its_name():
    config = LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    attention = LlamaForCausalLM(config).model.layers[0].self_attn
    assert CACHE in inspect.signature(attention.forward).parameters


@pytest.mark.parametrize("here", [True, False])
def test_a_process_that_is_not_the_first_saves_a_model_if_it_is_asked_to(
    tmp_path, monkeypatch, gpt2, here
):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda *group: 1)
    model = internals.saved_by_this_process(gpt2)
    model.save_pretrained(tmp_path, is_main_process=here)
    assert (tmp_path / "model.safetensors").is_file() == here


@pytest.mark.parametrize("unwrapped", [False, True])
def test_accelerate_wraps_a_model_in_a_method_that_can_be_told_not_to(
    tmp_path, monkeypatch, gpt2, unwrapped
):
    class Wrapper(nn.Module):
        def __init__(self, module, **options):
            super().__init__()

    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", Wrapper)
    trainer = Trainer(gpt2, arguments(tmp_path), train_dataset=Items())
    monkeypatch.setattr("accelerate.Accelerator.distributed_type", DistributedType.MULTI_CPU)
    if unwrapped:
        internals.leave_unwrapped(trainer)
    assert isinstance(trainer.accelerator.prepare(gpt2), Wrapper) != unwrapped


def plain_attention(q, k, v, causal=False, softmax_scale=None, dropout_p=0.0):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    how = {"is_causal": causal, "scale": softmax_scale, "dropout_p": dropout_p, "enable_gqa": True}
    return F.scaled_dot_product_attention(q, k, v, **how).transpose(1, 2)


def attention_of_lengths(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    causal=False,
    softmax_scale=None,
):
    places = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    reads = [
        plain_attention(q[None, a:b], k[None, c:d], v[None, c:d], causal, softmax_scale)[0]
        for (a, b), (c, d) in places
    ]
    return torch.cat(reads)


@pytest.mark.parametrize("queries", [6, 4, 1])
def test_flash_attention_takes_lengths_in_the_place_of_masks(monkeypatch, queries):
    """transformers' own function, around plain kernels in the place of those of a GPU."""
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    kernels = (plain_attention, attention_of_lengths, None, flash._pad_input, flash._unpad_input)
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: kernels)
    config = GPT2Config()
    config._attn_implementation_internal = "flash_attention_2"
    read = internals.RegisteredAttention("flash_attention_2", config)
    assert read.takes_padding_alone and "flash_attention_2" in read.names()
    torch.manual_seed(0)
    q = torch.randn(2, 4, queries, 8).double()
    k, v = torch.randn(2, 2, 2, 6, 8).double()
    with pytest.raises(ValueError, match=r"computes in torch.float64, expected torch.float16"):
        read(q, k, v, None, False, 0.0)
    monkeypatch.setattr(read, "_check", lambda q, mask: None)
    padding = torch.tensor([[False] * 6, [True, False, False, False, False, True]])
    for is_causal in (False, True) if queries == 6 else (False,):
        for mask in (None, padding[:, None, None]):
            allowed = torch.ones(2, 1, queries, 6, dtype=torch.bool)
            allowed = allowed.tril() if is_causal else allowed
            allowed = allowed if mask is None else allowed & ~mask
            expected = F.scaled_dot_product_attention(q, k, v, allowed, enable_gqa=True)
            got = read(q, k, v, mask, is_causal, 0.0)
            if is_causal and mask is not None:  # what padding reads does not matter
                got, expected = (x.transpose(1, 2)[~padding] for x in (got, expected))
            torch.testing.assert_close(got, expected)
    monkeypatch.setattr(flash, "_loaded_implementation", None)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_rotary_positions_are_scaled_by_functions_of_a_few_attributes(kind):
    given = {"rope_type": kind, "rope_theta": 500.0, "factor": 4.0}
    if kind != "linear":
        given["original_max_position_embeddings"] = 32
    if kind == "llama3":
        given |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 128}
    config = LlamaConfig(**sizes, rope_parameters=dict(given))
    rates, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    found, factor = internals.scaled_rotary_frequencies(given, 16, torch.device("cpu"))
    torch.testing.assert_close(found, rates)
    assert factor == scale and (scale != 1) == (kind == "yarn")


def test_attentions_ask_their_own_configuration_how_to_attend():
    bert = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.EncoderDecoderModel(  # it gives its encoder a copy of the configuration
        encoder=transformers.BertModel(transformers.BertConfig(**bert)),
        decoder=transformers.BertLMHeadModel(
            transformers.BertConfig(**bert, is_decoder=True, add_cross_attention=True)
        ),
    ).eval()
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    before = [config.to_dict() | vars(config) for config in configs]
    with internals.attending_eagerly(model):
        out = model(input_ids=IDS, decoder_input_ids=IDS, output_attentions=True)
    for weights in (out.encoder_attentions, out.decoder_attentions, out.cross_attentions):
        assert [each.shape for each in weights] == [(1, 2, 4, 4)]
    assert [config.to_dict() | vars(config) for config in configs] == before
    with pytest.raises(KeyError), internals.attending_eagerly(model):
        raise KeyError
    assert {internals.attn_implementation(config) for config in configs} == {"sdpa"}
