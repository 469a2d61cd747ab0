"""Models of transformers become models of headwise that compute the same."""

import copy
import logging

import pytest
import torch
import transformers as tf
from architectures import like_bart, like_bert, like_gpt2, like_llama
from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention, JetMoeRotaryEmbedding

import headwise as hw
from headwise.ops.rotary import Rotary

logging.getLogger("transformers").setLevel(logging.ERROR)

SIZES = {"heads": 4, "key_heads": 2, "head_dim": 8, "layers": 2, "ffn": 24}
EXACT = {"rtol": 0, "atol": 1e-5}
LONG = {"rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LONG}


def llama(sizes=SIZES, **options):
    return tf.LlamaForCausalLM(tf.LlamaConfig(**like_llama(sizes, **options)))


def mistral(**options):
    options = {"sliding_window": None, **options}
    return tf.MistralForCausalLM(tf.MistralConfig(**like_llama(SIZES, **options)))


def qwen2(**options):
    return tf.Qwen2ForCausalLM(tf.Qwen2Config(**like_llama(SIZES, **options)))


def qwen3(**options):
    options = {"head_dim": 12, **options}
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(**like_llama(SIZES, **options)))


def gpt2(**options):
    return tf.GPT2LMHeadModel(tf.GPT2Config(**like_gpt2(SIZES, **options)))


def bert(**options):
    return tf.BertForMaskedLM(tf.BertConfig(**like_bert(SIZES, **options)))


def marian(**options):
    options = {"decoder_layers": 3, **options}
    return tf.MarianMTModel(tf.MarianConfig(**like_bart(SIZES, **options)))


DECODERS = {
    "llama": llama,
    "llama, tied, biases": lambda: llama(
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama, all key heads, wide heads": lambda: llama({**SIZES, "key_heads": 4}, head_dim=10),
    "llama 3": lambda: llama(rope_parameters=LLAMA3),
    "llama, yarn": lambda: llama(rope_parameters={"rope_type": "yarn", **LONG}),
    "llama, yarn by lengths": lambda: llama(
        rope_parameters={"rope_type": "yarn", **LONG, "factor": None}
    ),
    "llama, linear, gelu": lambda: llama(
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
        hidden_act="gelu",
    ),
    "mistral": mistral,
    "mistral, a window that is never full": lambda: mistral(sliding_window=64),
    "qwen2": qwen2,
    "qwen2, tied": lambda: qwen2(tie_word_embeddings=True),
    "qwen3": qwen3,
    "gpt2": gpt2,
    "gpt2, untied, relu, four times": lambda: gpt2(
        tie_word_embeddings=False, activation_function="relu", n_inner=None
    ),
}
ENCODERS = {
    "bert": bert,
    "bert, untied": lambda: bert(tie_word_embeddings=False),
}
TRANSLATORS = {
    "marian": lambda: marian(scale_embedding=True, activation_function="swish"),
    "marian, unscaled, untied": lambda: marian(
        tie_word_embeddings=False, share_encoder_decoder_embeddings=False
    ),
    "marian, two vocabularies": lambda: marian(
        decoder_vocab_size=33, share_encoder_decoder_embeddings=False, scale_embedding=True
    ),
}
EVERY = DECODERS | ENCODERS | TRANSLATORS
FIRST = ["llama", "qwen3", "gpt2", "bert", "marian"]


def drawn(name: str):
    """A model whose norms and biases are random too."""
    model = EVERY[name]()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.2 * torch.randn_like(weight))
        if "marian" in name:
            model.final_logits_bias.normal_()
    return model.eval()


def both(name: str):
    theirs = drawn(name)
    return theirs, hw.from_transformers(theirs)


def read(name: str) -> dict:
    """Three texts of 9 tokens, two of them padded: decoders' on the left."""
    ids = torch.randint(5, 33, (3, 9))
    mask = torch.ones_like(ids)
    if name in DECODERS:
        mask[1, :4], mask[2, :1] = 0, 0
    else:
        mask[1, 5:], mask[2, 8:] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name in TRANSLATORS:
        inputs["decoder_input_ids"] = torch.randint(5, 33, (3, 7))
    return inputs


def logits_of(theirs, inputs: dict):
    if theirs.config.model_type in ("bert", "marian"):
        return theirs(**inputs).logits
    positions = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return theirs(**inputs, position_ids=positions).logits


def real(logits, inputs: dict):
    """Those of tokens, not of padding."""
    whole = "decoder_input_ids" in inputs
    return logits if whole else logits[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_logits_are_equal(name):
    theirs, ours = both(name)
    inputs = read(name)
    expected = real(logits_of(theirs, inputs), inputs)
    assert expected.std() > 0.3
    torch.testing.assert_close(real(ours(**inputs).logits, inputs), expected, **EXACT)


@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
@torch.no_grad()
def test_logits_are_equal_step_by_step(name):
    theirs, ours = both(name)
    inputs = read(name)
    expected = logits_of(theirs, inputs)
    cache, logits = ours.new_cache(), []
    for t in range(expected.size(1)):
        if name in TRANSLATORS:
            part = {**inputs, "decoder_input_ids": inputs["decoder_input_ids"][:, t : t + 1]}
        else:
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            part = {"input_ids": ids[:, t : t + 1], "attention_mask": mask[:, : t + 1]}
        logits.append(ours(**part, cache=cache).logits)
    logits = torch.cat(logits, dim=1)
    torch.testing.assert_close(real(logits, inputs), real(expected, inputs), **EXACT)


@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
def test_generated_texts_are_equal(name):
    theirs, ours = both(name)
    inputs = read(name)
    inputs.pop("decoder_input_ids", None)
    static = {
        "cache_implementation": "static",
        "compile_config": tf.CompileConfig(backend="eager", fullgraph=False),
    }
    searches = [{"num_beams": 1}, {"num_beams": 3}]
    if name == "marian, two vocabularies":  # whose beams transformers 5.16 cannot search
        searches = searches[:1]
    for options in searches:
        expected = theirs.generate(**inputs, max_new_tokens=10, **options)
        for cache in ({}, static):
            made = ours.generate(**inputs, max_new_tokens=10, **options, **cache)
            assert torch.equal(made, expected)


@pytest.mark.parametrize("name", FIRST)
def test_losses_and_gradients_are_equal(name):
    theirs, ours = both(name)
    inputs = read(name)
    inputs.pop("attention_mask")
    inputs["labels"] = inputs.pop("decoder_input_ids", inputs["input_ids"]).clone()
    inputs["labels"][:, 5:] = -100
    losses = [model(**inputs).loss for model in (theirs, ours)]
    torch.testing.assert_close(losses[1], losses[0], **EXACT)
    assert ours.config.label_smoothing == 0  # in training too
    for loss in losses:
        loss.backward()
    words = [model.get_input_embeddings().weight.grad for model in (theirs, ours)]
    torch.testing.assert_close(words[1], words[0], **EXACT)


@pytest.mark.parametrize(
    ("make", "pad", "learns"), [(gpt2, 7, True), (gpt2, 99, True), (llama, 7, False)]
)
def test_a_token_that_pads_learns_where_it_did(make, pad, learns, tmp_path):
    theirs = make(pad_token_id=pad, tie_word_embeddings=False).eval()
    ours = hw.from_transformers(theirs)
    ours.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 7, 7, 6]])
    for model in (theirs, ours, hw.CausalLM.from_pretrained(tmp_path).eval()):
        model(input_ids=ids, labels=ids).loss.backward()
        grad = model.get_input_embeddings().weight.grad
        assert bool(grad[7].any()) == learns
        torch.testing.assert_close(grad, theirs.get_input_embeddings().weight.grad, **EXACT)


@pytest.mark.parametrize("plan", ["gated", "mae", {"system": "moh", "shared_heads": 2, "top_k": 2}])
@pytest.mark.parametrize("name", FIRST)
@torch.no_grad()
def test_other_systems_start_with_the_same_output(name, plan):
    theirs, ours = both(name)
    inputs = read(name)
    other = ours.with_attention(plan)
    assert hw.gate_parameters(other)
    expected = real(logits_of(theirs, inputs), inputs)
    torch.testing.assert_close(real(other(**inputs).logits, inputs), expected, **EXACT)


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_a_model_is_saved_and_loaded(name, tmp_path):
    ours = hw.from_transformers(drawn(name))
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path).eval()
    inputs = read(name)
    assert torch.equal(again(**inputs).logits, ours(**inputs).logits)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        assert getattr(again.config, key, None) == getattr(ours.config, key, None)


@pytest.mark.parametrize("name", FIRST)
def test_a_folder_becomes_a_model(name, tmp_path):
    theirs = drawn(name).bfloat16()
    theirs.save_pretrained(tmp_path)
    ours, expected = hw.from_transformers(tmp_path), hw.from_transformers(theirs)
    assert ours.dtype == ours.config.dtype == torch.bfloat16
    assert not ours.training
    for name, weight in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight)


def test_what_else_is_taken_from_the_source():
    theirs = gpt2(pad_token_id=None, eos_token_id=[3, 4])
    theirs.transformer.requires_grad_(False)
    theirs.transformer.h[1].attn.c_attn.requires_grad_(True)
    theirs.generation_config.update(max_new_tokens=3, do_sample=True, top_k=7)
    before = copy.deepcopy(theirs.state_dict())
    ours = hw.from_transformers(theirs.double().train())
    assert ours.training
    assert ours.dtype == torch.float64
    assert (ours.config.pad_token_id, ours.config.bos_token_id) == (None, 2)
    assert ours.config.eos_token_id == [3, 4]
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()
    assert ours.generation_config is not theirs.generation_config
    learning = {n for n, p in ours.named_parameters() if p.requires_grad}
    at = "decoder.layers.1.self_attention"
    assert learning == {f"{at}.{p}_proj.{k}" for p in "qkv" for k in ("weight", "bias")}
    with torch.no_grad():
        for weight in ours.parameters():
            weight.zero_()
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(weight, before[name].double())


@pytest.mark.parametrize("name", FIRST)
@torch.no_grad()
def test_what_learned_learns(name):
    """Whether or not gradients are wanted here; the sinusoids and the bias of Marian do not."""
    ours = hw.from_transformers(EVERY[name]())
    frozen = {n for n, p in ours.named_parameters() if not p.requires_grad}
    stacks = {f"model.{stack}.positions.weight" for stack in ("encoder", "decoder")}
    assert frozen == ({*stacks, "lm_head.bias"} if name == "marian" else set())


def test_a_vocabulary_grows_with_its_bias():
    _, ours = both("marian")
    inputs = read("marian")
    before = ours(**inputs).logits
    ours.resize_token_embeddings(before.size(-1) + 3)
    torch.testing.assert_close(ours(**inputs).logits[..., :-3], before, **EXACT)


def test_a_converted_model_learns():
    theirs, ours = both("qwen3")
    other = ours.with_attention("gated").train()
    optimizer = torch.optim.Adam(other.parameters(), 0.01)
    ids = read("qwen3")["input_ids"]
    losses = []
    for _ in range(15):
        loss = other(input_ids=ids, labels=ids).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, **EXACT)


REFUSED = {
    "sliding_window is 16, expected None or at least max_position_embeddings = 64": lambda: mistral(
        sliding_window=16
    ),
    "sliding_window is 8": lambda: qwen2(
        use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "attention_bias is True, expected False": lambda: llama(attention_bias=True),
    "attention_bias is False, expected True": lambda: llama(mlp_bias=True),
    "attention_bias is True, expected": lambda: qwen3(attention_bias=True),
    "rope_type is 'dynamic', expected one of": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    ),
    "the activation of the feed-forward is 'relu', expected one of silu": lambda: llama(
        hidden_act="relu"
    ),
    "the activation of the feed-forward is 'tanh'": lambda: gpt2(activation_function="tanh"),
    "scale_attn_by_inverse_layer_idx is True": lambda: gpt2(scale_attn_by_inverse_layer_idx=True),
    "embd_pdrop is 0.2, expected 0.1": lambda: gpt2(embd_pdrop=0.2),
    "add_cross_attention is True": lambda: gpt2(add_cross_attention=True),
    "is_decoder is True": lambda: bert(is_decoder=True),
    "hidden_act is 'relu', expected 'gelu'": lambda: bert(hidden_act="relu"),
    "encoder_ffn_dim is 24, expected 30": lambda: marian(decoder_ffn_dim=30),
    "encoder_attention_heads is 4, expected 2": lambda: marian(decoder_attention_heads=2),
    "decoder_layerdrop is 0.1": lambda: marian(decoder_layerdrop=0.1),
    "of type 't5', expected one of llama, mistral, qwen2, qwen3, gpt2, bert, marian": lambda: (
        tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=9, d_model=8, num_layers=1, d_ff=8))
    ),
    "model is a LlamaModel, expected a LlamaForCausalLM: load it by": lambda: llama().model,
    "has gates over its heads already": lambda: hw.gate_heads(gpt2(), "gated"),
    "convert it before heads go": lambda: hw.prune_heads(gpt2(), {0: [1]}),
    "weights of model are on meta": lambda: llama().to("meta"),
    "model is a Linear, expected a model of transformers": lambda: torch.nn.Linear(2, 3),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_our_models_do_not_compute_is_an_error(message):
    model = REFUSED[message]()
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        hw.from_transformers(model)


def test_quantised_weights_are_an_error():
    model = llama()
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(ValueError, match=r"quantised, expected numbers: call model.dequantize"):
        hw.from_transformers(model)


def test_a_folder_without_the_head_is_an_error(tmp_path):
    bert().bert.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"lacks cls.predictions.*, expected all weights of a Bert"
    ):
        hw.from_transformers(str(tmp_path))


def test_a_folder_with_gates_is_an_error(tmp_path):
    with pytest.warns(UserWarning, match="save_gates"):
        hw.gate_heads(gpt2()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has gates over the heads of a GPT2LMHeadModel, which"):
        hw.from_transformers(tmp_path)


def test_attention_of_jetmoe_is_a_mixture_with_grouped_keys():
    """Outputs and gradients are those of transformers' own class."""
    config = tf.JetMoeConfig(
        hidden_size=24,
        num_key_value_heads=3,
        kv_channels=8,
        num_local_experts=5,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    theirs = JetMoeAttention(config, layer_idx=0)
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    ours = hw.MoA(24, 5, 2, 8, num_key_value_heads=3, **hw.MoA.presets["jetmoe"])
    experts = theirs.experts
    keys, values = theirs.kv_proj.weight.chunk(2)
    pairs = {
        "router.weight": (experts.router.layer.weight, lambda w: w),
        "expert_query": (experts.input_linear.weight, lambda w: w.transpose(1, 2)),
        "expert_output": (experts.output_linear.weight, lambda w: w.transpose(1, 2)),
        "output_bias": (experts.bias, lambda w: w),
    }
    state = {name: laid(weight) for name, (weight, laid) in pairs.items()}
    ours.load_state_dict({**state, "k_proj.weight": keys, "v_proj.weight": values})

    x = torch.randn(2, 7, 24)
    reads = [x.clone().requires_grad_() for _ in range(2)]
    positions = torch.arange(7)
    turns = JetMoeRotaryEmbedding(config)(x, positions[None])
    mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    expected = theirs(reads[0], mask, turns)[0]
    rotary = Rotary(positions, {"rope_theta": 100.0})
    output = ours(reads[1], is_causal=True, rotary=rotary).output
    torch.testing.assert_close(output, expected, **EXACT)

    weighing = torch.randn_like(output)
    for each in (expected, output):
        (each * weighing).sum().backward()
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(reads[1].grad, reads[0].grad, **close)
    for name, (weight, laid) in pairs.items():
        torch.testing.assert_close(ours.get_parameter(name).grad, laid(weight.grad), **close)
    joined = torch.cat([ours.k_proj.weight.grad, ours.v_proj.weight.grad])
    torch.testing.assert_close(joined, theirs.kv_proj.weight.grad, **close)
