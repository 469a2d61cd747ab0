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

_INSTEAD = "hw.gate_heads puts gates over the heads of the model as it is"


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
    kind = model.config.model_type
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"model is of type {kind!r}, expected one of {known}; {_INSTEAD}")
    row = ARCHITECTURES[kind]
    if type(model).__name__ != row.source:
        raise ValueError(f"model is a {type(model).__name__}, expected a {row.source}")
    config = row.target.config_class(**row.settings(model.config), dtype=model.dtype)
    with torch.device("meta"):
        made = row.target(config)
    with torch.enable_grad():  # what is computed of weights that learn does learn
        weights = _weights(model, row, list(made.state_dict()))
    made.load_state_dict({n: w.detach().clone() for n, w in weights.items()}, assign=True)
    made.tie_weights()
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(weights[name].requires_grad)
    if made.can_generate():
        made.generation_config = copy.deepcopy(model.generation_config)
    return made.train(model.training)


def _weights(model: PreTrainedModel, row: Architecture, ours: list[str]) -> State:
    """Their weights by our names."""
    state = dict(model.state_dict(keep_vars=True))
    parts = re.compile("|".join(map(re.escape, row.names)))
    theirs = {name: parts.sub(lambda part: row.names[part[0]], name) for name in ours}
    try:
        row.prepare(state, model.config)
        strange = set(theirs.values()) ^ state.keys()
    except KeyError as error:
        strange = set(error.args)
    if strange:
        raise ValueError(
            f"model differs from a {row.source} in its weights {', '.join(sorted(strange)[:3])}; "
            f"merge adapters first (merge_and_unload() of peft), remove gates (hw.remove_gates)"
        )
    return {name: state[place] for name, place in theirs.items()}


_GATED = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu"}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
_ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu-tanh")
_QWEN: dict[str, Settings] = {"qwen2": {"bias": "qkv"}, "qwen3": {"qk_norm": True}}


def _activation(known: Mapping[str, str], **given: str) -> Settings:
    ((key, name),) = given.items()
    check_choice(**{key: (name, tuple(known))})
    return {"ffn_activation": known[name]}


def _check(config: Any, **expected: Any) -> None:
    for key, only in expected.items():
        value = getattr(config, key, only)
        if value != only:
            raise ValueError(f"{key} is {value!r}, expected {only!r}; {_INSTEAD}")


def _of_all(config: Any) -> Settings:
    tokens = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
    sizes = {"embed_dim": config.hidden_size, "num_heads": config.num_attention_heads}
    return sizes | {key: getattr(config, key) for key in tokens}


def _of_stack(config: Any) -> Settings:
    made = _of_all(config) | {"layers": config.num_hidden_layers, "scale_embeddings": False}
    made["max_length"] = config.max_position_embeddings
    return made | {"share_embeddings": config.tie_word_embeddings}


def _llama(config: Any) -> Settings:
    _check_window(config)
    bias = getattr(config, "mlp_bias", False)
    _check(config, attention_bias=bias)
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None)
    # These models turn whole heads, whatever `partial_rotary_factor` says.
    turns = {**config.rope_parameters, "partial_rotary_factor": 1.0}
    if turns["rope_type"] == "yarn" and turns["factor"] is None:
        turns["factor"] = config.max_position_embeddings / turns["original_max_position_embeddings"]
    made = _of_stack(config) | {"norm": "pre", "norm_kind": "rms", "norm_eps": config.rms_norm_eps}
    made |= {"positions": "rotary", "rope_parameters": turns, "bias": bias, "dropout": 0.0}
    made |= {"head_dim": None if width == config.hidden_size / heads else width}
    made |= {"num_key_value_heads": None if key_heads == heads else key_heads}
    made |= {"ffn_dim": config.intermediate_size, "attention_dropout": config.attention_dropout}
    if config.model_type in _QWEN:
        made |= _QWEN[config.model_type]
    return made | _activation(_GATED, hidden_act=config.hidden_act)


def _check_window(config: Any) -> None:
    window, most = getattr(config, "sliding_window", None), config.max_position_embeddings
    every_layer = "sliding_attention"  # of Mistral, which does not say which
    slides = every_layer in (getattr(config, "layer_types", None) or [every_layer])
    if window is not None and slides and window < most:
        raise ValueError(
            f"sliding_window is {window}, expected None or at least max_position_embeddings = "
            f"{most}; set config.sliding_window = None if no text is to be longer; {_INSTEAD}"
        )


def _gpt2(config: Any) -> Settings:
    _check(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    _check(config, add_cross_attention=False, embd_pdrop=config.resid_pdrop)
    made = _of_stack(config) | {"norm": "pre", "norm_eps": config.layer_norm_epsilon}
    made |= {"positions": "learned", "max_positions": config.n_positions}
    made |= {"ffn_dim": 4 * config.n_embd if config.n_inner is None else config.n_inner}
    made |= _activation(_ACTIVATIONS, activation_function=config.activation_function)
    return made | {"dropout": config.resid_pdrop, "attention_dropout": config.attn_pdrop}


def _bert(config: Any) -> Settings:
    # Behind the encoder MaskedLM has GELU, whatever its layers have.
    _check(config, is_decoder=False, add_cross_attention=False, hidden_act="gelu")
    made = _of_stack(config) | {"norm_eps": config.layer_norm_eps, "embedding_norm": True}
    made |= {"positions": "learned", "max_positions": config.max_position_embeddings}
    made |= {"ffn_dim": config.intermediate_size, "ffn_activation": "gelu"}
    made |= {"mask_token_id": None}  # the tokenizer knows it
    drops = {"attention_dropout": config.attention_probs_dropout_prob}
    return made | drops | {"dropout": config.hidden_dropout_prob}


def _marian(config: Any) -> Settings:
    heads, width = config.decoder_attention_heads, config.decoder_ffn_dim
    _check(config, encoder_attention_heads=heads, encoder_ffn_dim=width)
    _check(config, encoder_layerdrop=0, decoder_layerdrop=0)
    shared = config.share_encoder_decoder_embeddings
    share = ("all" if shared else "target") if config.tie_word_embeddings else "none"
    words, most = config.vocab_size, config.max_position_embeddings
    made = _of_all(config) | {"share_embeddings": share, "output_bias": True}
    made |= {"target_vocab_size": words if shared else config.decoder_vocab_size}
    made |= {"decoder_start_token_id": config.decoder_start_token_id, "label_smoothing": 0.0}
    made |= {"encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers}
    made |= {"positions": "learned", "max_positions": most, "max_target_length": most}
    made |= {"scale_embeddings": config.scale_embedding, "ffn_dim": width}
    made |= _activation(_ACTIVATIONS, activation_function=config.activation_function)
    made |= {"dropout": config.dropout, "attention_dropout": config.attention_dropout}
    return made | {"ffn_dropout": config.activation_dropout}


def _prepare_llama(state: State, config: Any) -> None:
    for gate in [name for name in state if ".gate_proj." in name]:
        # The gate first, as in our feed-forwards.
        both = state.pop(gate), state.pop(gate.replace("gate_proj", "up_proj"))
        state[gate.replace("gate_proj", "gate_up_proj")] = torch.cat(both)


def _prepare_gpt2(state: State, config: Any) -> None:
    for name in [name for name in state if ".c_" in name]:
        weight = state.pop(name).t()  # of a Conv1D, (input, output)
        parts = zip("qkv", weight.tensor_split(3), strict=True)
        if ".attn.c_attn." in name:
            state |= {name.replace("c_attn", which): part for which, part in parts}
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


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", CausalLM, _llama, _LLAMA, _prepare_llama),
    "mistral": Architecture("MistralForCausalLM", CausalLM, _llama, _LLAMA, _prepare_llama),
    "qwen2": Architecture("Qwen2ForCausalLM", CausalLM, _llama, _LLAMA, _prepare_llama),
    "qwen3": Architecture("Qwen3ForCausalLM", CausalLM, _llama, _LLAMA, _prepare_llama),
    "gpt2": Architecture("GPT2LMHeadModel", CausalLM, _gpt2, _GPT2, _prepare_gpt2),
    "bert": Architecture("BertForMaskedLM", MaskedLM, _bert, _BERT, _prepare_bert),
    "marian": Architecture("MarianMTModel", Seq2SeqLM, _marian, _MARIAN, _prepare_marian),
}
