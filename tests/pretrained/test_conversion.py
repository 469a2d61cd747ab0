"""Models of transformers become models of headwise with the same outputs."""

import copy

import pytest
import torch
from support.architectures import FIRST, PADDING, build, gate, padding, refused, tokens

import headwise as hw

_LONG = {"rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_LONG}
_LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
_BIASES = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
_APART = {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False}
# The kinds of models, and options of each that its conversion has to look at.
DECODERS = {
    "llama": {},
    "llama tied": _BIASES,
    "llama wide": {"head_dim": 10, "num_key_value_heads": 4, "hidden_act": "gelu"},
    "llama 3": {"rope_parameters": _LLAMA3},
    "llama yarn": {"rope_parameters": {"rope_type": "yarn", **_LONG, "factor": None}},
    "llama linear": {"rope_parameters": _LINEAR},
    "mistral": {"sliding_window": 64},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "gpt2": {},
    "gpt2 untied": {"tie_word_embeddings": False, "activation_function": "relu", "n_inner": None},
}
ENCODERS = {"bert": {}, "bert untied": {"tie_word_embeddings": False}}
PAIRS = {
    "marian": {"scale_embedding": True, "activation_function": "swish", "decoder_layers": 3},
    "marian untied": _APART,
    "marian two": {**_APART, "decoder_vocab_size": 33, "scale_embedding": True},
}
ALL = DECODERS | ENCODERS | PAIRS
FIRST_OF_EACH = ["llama", "mistral", "qwen2", "qwen3", "gpt2", "bert", "marian"]


@torch.no_grad()
def random_model(name):
    """A model all of whose weights are random, norms and biases too."""
    model = build(name.split()[0], **ALL[name])
    for weight in model.parameters():
        if weight.requires_grad:
            weight.add_(0.2 * torch.randn_like(weight))
    if "marian" in name:
        model.final_logits_bias.normal_()
    return model


def inputs(name, rows=3, time=7):
    mask = padding(rows, time, "left" if name in DECODERS else "right")
    ids = torch.randint(FIRST, 33, (rows, time)).masked_fill(mask, PADDING)
    batch = {"input_ids": ids, "attention_mask": (~mask).long()}
    if "marian" in name:
        batch["decoder_input_ids"] = tokens(rows, 4).clamp(max=32)
    return batch


def logits(model, batch, name):
    """Those of real tokens; both count positions without padding."""
    real = batch["attention_mask"].bool()
    if name in DECODERS and type(model).__module__.startswith("transformers"):
        batch = {**batch, "position_ids": (real.long().cumsum(1) - 1).clamp(min=0)}
    out = model(**batch).logits
    return out if "marian" in name else out[real]


def assert_same(actual, expected):
    """In float64 but for some norms and rotations, which transformers computes in float32."""
    tolerance = 1e-9 if expected.dtype == torch.float64 else 2e-5
    atol = tolerance * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_converted_model_has_the_same_logits(name, tmp_path):
    """And a saved one; and its source stays as it is."""
    source, batch = random_model(name), inputs(name)
    expected, state = logits(source, batch, name), copy.deepcopy(source.state_dict())
    converted = hw.from_transformers(source)
    assert expected.std() > 0.1 and not converted.training and converted.dtype == source.dtype
    assert_same(logits(converted, batch, name), expected)
    converted.save_pretrained(tmp_path)
    loaded = type(converted).from_pretrained(tmp_path, dtype=converted.dtype).eval()
    assert_same(logits(loaded, batch, name), expected)
    for weight in converted.parameters():
        weight.zero_()
    assert all(torch.equal(state[key], value) for key, value in source.state_dict().items())


# transformers cannot search beams where the decoder has a vocabulary of its own ("marian two").
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", [*DECODERS, *list(PAIRS)[:2]])
def test_a_converted_model_generates_the_same_texts(name, beams):
    source, batch = random_model(name), inputs(name)
    batch.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False}
    expected = source.generate(**batch, **options)
    assert torch.equal(hw.from_transformers(source).generate(**batch, **options), expected)


@pytest.mark.parametrize("name", FIRST_OF_EACH)
def test_losses_and_what_learns_are_the_same(name):
    """A frozen weight stays frozen; of those of headwise and its source the same learn."""
    source = random_model(name).requires_grad_(False)
    source.get_input_embeddings().requires_grad_(True)
    converted = hw.from_transformers(source.train())
    ids = tokens(3, 6)
    batch = {"input_ids": ids, "labels": ids.index_fill(1, torch.tensor([4, 5]), -100)}
    losses, grads = [], []
    for model in (source, converted):
        losses.append(model(**batch).loss)
        losses[-1].backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    assert converted.training
    # transformers computes some losses in float32.
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0, check_dtype=False)
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def test_special_tokens_and_settings_are_taken_over():
    source = build("gpt2", pad_token_id=None, eos_token_id=[3, 4]).bfloat16()
    source.generation_config.update(max_new_tokens=3, do_sample=True, top_k=7)
    converted = hw.from_transformers(source)
    config = converted.config
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id) == (None, [3, 4], 2)
    assert (converted.dtype, converted.training) == (torch.bfloat16, False)
    assert converted.generation_config.to_dict()["top_k"] == 7


_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
REFUSED = [
    ("mistral", {"sliding_window": 16}, {"sliding_window", "16", "64"}),
    ("llama", {"attention_bias": True}, {"attention_bias", "True", "False"}),
    ("llama", {"rope_parameters": _DYNAMIC}, {"rope_type", "dynamic"}),
    ("gpt2", {"activation_function": "tanh"}, {"tanh", "gelu"}),
    ("bert", {"is_decoder": True}, {"is_decoder", "True"}),
    ("t5", {}, {"t5", "llama", "marian"}),
]


@pytest.mark.parametrize(("name", "options", "must_name"), REFUSED)
def test_what_our_models_do_not_compute_is_refused(name, options, must_name):
    refused(must_name, hw.from_transformers, build(name, **options))


def test_models_that_are_gated_pruned_or_not_loaded_are_refused():
    for model, name in ((gate("gpt2"), "remove_gates"), (build("bert").bert, "BertForMaskedLM"),
                        ("gpt2", "loaded")):  # fmt: skip
        refused({name}, hw.from_transformers, model)
    with pytest.raises(RuntimeError, match="size mismatch"):
        hw.from_transformers(hw.prune_heads(build("gpt2"), {"transformer.h.0.attn": [1]}))
