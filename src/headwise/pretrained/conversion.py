"""Pretrained models of transformers as models of headwise: a row for each architecture.

What our models do not compute is an error, never another output.
"""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.messages import check_choice
from headwise.models.modeling import HeadwiseModel
from headwise.models.text import CausalLM, MaskedLM, Seq2SeqLM

Settings = dict[str, Any]
State = dict[str, Tensor]

_ADVICE = "hw.gate_heads puts gates over the heads of the model as it is"


class Architecture(NamedTuple):
    """How models of one `model_type` become ours."""

    source: str  # the class of the model in transformers
    target: type[HeadwiseModel]
    settings: Callable[[Any], Settings]  # our configuration from theirs, or a ValueError
    names: Mapping[str, str]  # parts of the names of our weights, and what stands there in theirs
    prepare: Callable[[State, Any], None]  # changes their weights such that each of ours is one


def from_transformers(model: PreTrainedModel) -> Any:
    """Returns a pretrained model of transformers as a model of headwise, with the same output.

    From there `with_attention` puts other systems at its attentions. Llama, Mistral, Qwen2, Qwen3
    and GPT-2 with a language model's head become `CausalLM`, BERT with the head of a masked
    language model `MaskedLM`, and Marian `Seq2SeqLM`.

    Positions are counted without padding, as `generate()` counts them. Embeddings of BERT's first
    token type are added to those of positions, so that all tokens are of this type (call its
    tokenizer with `return_token_type_ids=False`). Marian's sinusoids become learned positions,
    frozen until `requires_grad_` says otherwise.

    Args:
        model: a model with its weights on one device. It stays as it is.

    Returns:
        A model with the special tokens, settings of generation, dtype, device, mode of training and
        frozen weights of the source. The two share no memory.

    Raises:
        ValueError: another model; one with adapters, gates or quantised weights; or one that our
            models cannot compute, such as attention over a window.

    Example:
        >>> import headwise as hw
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64}
        >>> config = LlamaConfig(**sizes, num_attention_heads=4, num_hidden_layers=2)
        >>> theirs = LlamaForCausalLM(config).eval()
        >>> ours = hw.from_transformers(theirs).with_attention("gated")
        >>> tokens = torch.tensor([[5, 6, 7]])
        >>> torch.allclose(ours(tokens).logits, theirs(tokens).logits, atol=1e-5)
        True
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"model is a {type(model).__name__}, expected a loaded model of transformers; "
            f"merge_and_unload() takes one out of peft"
        )
    model_type = model.config.model_type
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"model is of type {model_type!r}, expected one of {known}; {_ADVICE}")
    architecture = ARCHITECTURES[model_type]
    source, target = architecture.source, architecture.target
    if type(model).__name__ != source:
        raise ValueError(f"model is a {type(model).__name__}, expected a {source}")
    config = target.config_class(**architecture.settings(model.config), dtype=model.dtype)
    with torch.device("meta"):
        converted = target(config)
    with torch.enable_grad():  # what is computed of weights that learn does learn
        weights = _renamed_weights(model, architecture, list(converted.state_dict()))
    converted.load_state_dict({n: w.detach().clone() for n, w in weights.items()}, assign=True)
    converted.tie_weights()
    for name, parameter in converted.named_parameters():
        parameter.requires_grad_(weights[name].requires_grad)
    if converted.can_generate():
        converted.generation_config = copy.deepcopy(model.generation_config)
    return converted.train(model.training)


def _renamed_weights(model: PreTrainedModel, architecture: Architecture, names: list[str]) -> State:
    """Their weights by our names."""
    state = dict(model.state_dict(keep_vars=True))
    parts = architecture.names
    pattern = re.compile("|".join(map(re.escape, parts)))
    their_names = {name: pattern.sub(lambda part: parts[part[0]], name) for name in names}
    try:
        architecture.prepare(state, model.config)
        unmatched = set(their_names.values()) ^ state.keys()
    except KeyError as error:
        unmatched = set(error.args)
    if unmatched:
        raise ValueError(
            f"model differs from a {architecture.source} in its weights "
            f"{', '.join(sorted(unmatched)[:3])}; merge adapters first (merge_and_unload() of "
            f"peft), remove gates (hw.remove_gates)"
        )
    return {ours: state[theirs] for ours, theirs in their_names.items()}


_GATED = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu"}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
_ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu-tanh")
_QWEN: dict[str, Settings] = {"qwen2": {"bias": "qkv"}, "qwen3": {"qk_norm": True}}


def _activation(config: Any, key: str, our_names: Mapping[str, str]) -> str:
    name = getattr(config, key)
    check_choice(key, name, our_names)
    return our_names[name]


def _require(config: Any, **expected: Any) -> None:
    for key, required in expected.items():
        value = getattr(config, key, required)
        if value != required:
            raise ValueError(f"{key} is {value!r}, expected {required!r}; {_ADVICE}")


def _common_settings(config: Any, **settings: Any) -> Settings:
    tokens = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
    settings.update(embed_dim=config.hidden_size, num_heads=config.num_attention_heads)
    return settings | {key: getattr(config, key) for key in tokens}


def _one_stack_settings(config: Any, **settings: Any) -> Settings:
    settings.update(layers=config.num_hidden_layers, max_length=config.max_position_embeddings)
    settings.update(scale_embeddings=False, share_embeddings=config.tie_word_embeddings)
    return _common_settings(config, **settings)


def _llama_settings(config: Any) -> Settings:
    _check_window(config)
    bias = getattr(config, "mlp_bias", False)
    _require(config, attention_bias=bias)
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None)
    # These models turn whole heads, whatever `partial_rotary_factor` says.
    rope = {**config.rope_parameters, "partial_rotary_factor": 1.0}
    if rope["rope_type"] == "yarn" and rope["factor"] is None:
        rope["factor"] = config.max_position_embeddings / rope["original_max_position_embeddings"]
    settings = _one_stack_settings(config, positions="rotary", rope_parameters=rope, bias=bias)
    settings.update(norm="pre", norm_kind="rms", norm_eps=config.rms_norm_eps, dropout=0.0)
    settings.update(head_dim=None if head_dim == config.hidden_size / heads else head_dim)
    settings.update(num_key_value_heads=None if key_heads == heads else key_heads)
    settings.update(ffn_dim=config.intermediate_size, attention_dropout=config.attention_dropout)
    settings.update(ffn_activation=_activation(config, "hidden_act", _GATED))
    return settings | _QWEN.get(config.model_type, {})


def _check_window(config: Any) -> None:
    window, longest = getattr(config, "sliding_window", None), config.max_position_embeddings
    every_layer = "sliding_attention"  # of Mistral, which does not say which
    slides = every_layer in (getattr(config, "layer_types", None) or [every_layer])
    if window is not None and slides and window < longest:
        raise ValueError(
            f"sliding_window is {window}, expected None or at least max_position_embeddings = "
            f"{longest}; set config.sliding_window = None if no text is to be longer; {_ADVICE}"
        )


def _gpt2_settings(config: Any) -> Settings:
    _require(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    _require(config, add_cross_attention=False, embd_pdrop=config.resid_pdrop)
    settings = _one_stack_settings(config, norm="pre", norm_eps=config.layer_norm_epsilon)
    settings.update(positions="learned", max_positions=config.n_positions)
    settings.update(ffn_dim=4 * config.n_embd if config.n_inner is None else config.n_inner)
    settings.update(ffn_activation=_activation(config, "activation_function", _ACTIVATIONS))
    return settings | {"dropout": config.resid_pdrop, "attention_dropout": config.attn_pdrop}


def _bert_settings(config: Any) -> Settings:
    # Behind the encoder MaskedLM has GELU, whatever its layers have.
    _require(config, is_decoder=False, add_cross_attention=False, hidden_act="gelu")
    settings = _one_stack_settings(config, norm_eps=config.layer_norm_eps, embedding_norm=True)
    settings.update(positions="learned", max_positions=config.max_position_embeddings)
    settings.update(ffn_dim=config.intermediate_size, ffn_activation="gelu")
    settings.update(mask_token_id=None)  # the tokenizer knows it
    settings.update(attention_dropout=config.attention_probs_dropout_prob)
    return settings | {"dropout": config.hidden_dropout_prob}


def _marian_settings(config: Any) -> Settings:
    heads, ffn_dim = config.decoder_attention_heads, config.decoder_ffn_dim
    _require(config, encoder_attention_heads=heads, encoder_ffn_dim=ffn_dim)
    _require(config, encoder_layerdrop=0, decoder_layerdrop=0)
    shared = config.share_encoder_decoder_embeddings
    share = ("all" if shared else "target") if config.tie_word_embeddings else "none"
    longest = config.max_position_embeddings
    settings = _common_settings(config, share_embeddings=share, output_bias=True)
    settings.update(target_vocab_size=config.vocab_size if shared else config.decoder_vocab_size)
    settings.update(decoder_start_token_id=config.decoder_start_token_id, label_smoothing=0.0)
    settings.update(encoder_layers=config.encoder_layers, decoder_layers=config.decoder_layers)
    settings.update(positions="learned", max_positions=longest, max_target_length=longest)
    settings.update(scale_embeddings=config.scale_embedding, ffn_dim=ffn_dim)
    settings.update(ffn_activation=_activation(config, "activation_function", _ACTIVATIONS))
    settings.update(dropout=config.dropout, attention_dropout=config.attention_dropout)
    return settings | {"ffn_dropout": config.activation_dropout}


def _prepare_llama(state: State, config: Any) -> None:
    for gate in [name for name in state if ".gate_proj." in name]:
        # The gate first, as in our feed-forwards.
        halves = state.pop(gate), state.pop(gate.replace("gate_proj", "up_proj"))
        state[gate.replace("gate_proj", "gate_up_proj")] = torch.cat(halves)


def _prepare_gpt2(state: State, config: Any) -> None:
    for name in [name for name in state if ".c_" in name]:
        weight = state.pop(name).t()  # of a Conv1D, (input, output)
        if ".attn.c_attn." in name:
            parts = zip("qkv", weight.tensor_split(3), strict=True)
            state |= {name.replace("c_attn", letter): part for letter, part in parts}
        else:
            state[name] = weight


def _prepare_bert(state: State, config: Any) -> None:
    types = state.pop("bert.embeddings.token_type_embeddings.weight")
    positions = "bert.embeddings.position_embeddings.weight"
    state[positions] = state[positions] + types[0]
    del state["cls.predictions.bias"]  # another name of that of the decoder


def _prepare_marian(state: State, config: Any) -> None:
    state["lm_head.bias"] = state.pop("final_logits_bias").squeeze(0)
    state.pop("model.shared.weight", None)  # another name of both embeddings
    if config.scale_embedding:  # ours scale their positions too
        for stack in ("encoder", "decoder"):
            positions = f"model.{stack}.embed_positions.weight"
            state[positions] = state[positions] / config.d_model**0.5


_LLAMA = {
    "decoder.embedding": "model.embed_tokens",
    "decoder.layers": "model.layers",
    "decoder.final_norm": "model.norm",
    "self_attention_residual.norm": "input_layernorm",
    "self_attention": "self_attn",
    "out_proj": "o_proj",
    "feed_forward_residual.norm": "post_attention_layernorm",
    "feed_forward.ffn_up": "mlp.gate_up_proj",
    "feed_forward.ffn_down": "mlp.down_proj",
}
_GPT2 = {
    "decoder.embedding": "transformer.wte",
    "decoder.positions": "transformer.wpe",
    "decoder.layers": "transformer.h",
    "decoder.final_norm": "transformer.ln_f",
    "self_attention_residual.norm": "ln_1",
    "self_attention.out_proj": "attn.c_proj",
    **{f"self_attention.{part}_proj": f"attn.{part}" for part in "qkv"},
    "feed_forward_residual.norm": "ln_2",
    "feed_forward.ffn_up": "mlp.c_fc",
    "feed_forward.ffn_down": "mlp.c_proj",
}
_BERT = {
    "encoder.embedding_norm": "bert.embeddings.LayerNorm",
    "encoder.embedding": "bert.embeddings.word_embeddings",
    "encoder.positions": "bert.embeddings.position_embeddings",
    "encoder.layers": "bert.encoder.layer",
    "self_attention.q_proj": "attention.self.query",
    "self_attention.k_proj": "attention.self.key",
    "self_attention.v_proj": "attention.self.value",
    "self_attention.out_proj": "attention.output.dense",
    "self_attention_residual.norm": "attention.output.LayerNorm",
    "feed_forward.ffn_up": "intermediate.dense",
    "feed_forward.ffn_down": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "transform": "cls.predictions.transform.dense",
    "lm_head": "cls.predictions.decoder",
}
_MARIAN = {
    "encoder.": "model.encoder.",
    "decoder.": "model.decoder.",
    "embedding": "embed_tokens",
    "positions": "embed_positions",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "self_attention": "self_attn",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "cross_attention": "encoder_attn",
    "feed_forward_residual.norm": "final_layer_norm",
    "feed_forward.ffn_up": "fc1",
    "feed_forward.ffn_down": "fc2",
}

_LIKE_LLAMA = (CausalLM, _llama_settings, _LLAMA, _prepare_llama)
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", *_LIKE_LLAMA),
    "mistral": Architecture("MistralForCausalLM", *_LIKE_LLAMA),
    "qwen2": Architecture("Qwen2ForCausalLM", *_LIKE_LLAMA),
    "qwen3": Architecture("Qwen3ForCausalLM", *_LIKE_LLAMA),
    "gpt2": Architecture("GPT2LMHeadModel", CausalLM, _gpt2_settings, _GPT2, _prepare_gpt2),
    "bert": Architecture("BertForMaskedLM", MaskedLM, _bert_settings, _BERT, _prepare_bert),
    "marian": Architecture("MarianMTModel", Seq2SeqLM, _marian_settings, _MARIAN, _prepare_marian),
}
