"""Tiny random models of every architecture that gates can be put over, and inputs for them."""

import logging
import random
from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from torch import Tensor

logging.getLogger("transformers").setLevel(logging.ERROR)
VOCABULARY = 40
FIRST = 5  # ids below it are special
PADDING = 1

Sizes = dict[str, int]
Draw = random.Random


def random_sizes(draw: Draw) -> Sizes:
    heads = draw.choice([2, 3, 4, 5, 6, 7, 8])
    return {
        "heads": heads,
        "key_heads": draw.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "head_dim": draw.choice([4, 6, 8]),
        "layers": draw.choice([1, 2, 3]),
        "ffn": draw.choice([8, 20]),
    }


def tiny_sizes() -> Sizes:
    return {"heads": 3, "key_heads": 1, "head_dim": 4, "layers": 2, "ffn": 8}


def width(sizes: Sizes) -> int:
    return sizes["heads"] * sizes["head_dim"]


def like_bert(sizes: Sizes, **options: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width(sizes),
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["ffn"],
        "max_position_embeddings": 64,
        "pad_token_id": PADDING,
        **options,
    }


def like_llama(sizes: Sizes, **options: Any) -> dict[str, Any]:
    keys = {"num_key_value_heads": sizes["key_heads"], "bos_token_id": 2, "eos_token_id": 3}
    return like_bert(sizes, **keys, **options)


def experts(sizes: Sizes) -> dict[str, Any]:
    return {
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": sizes["ffn"],
        "experts_implementation": "eager",  # others want widths that are multiples of 4
    }


def like_bart(sizes: Sizes, **options: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": width(sizes),
        **{f"{stack}_layers": sizes["layers"] for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": sizes["heads"] for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": sizes["ffn"] for stack in ("encoder", "decoder")},
        "max_position_embeddings": 64,
        "pad_token_id": PADDING,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
        **options,
    }


def like_gpt2(sizes: Sizes, **options: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "n_embd": width(sizes),
        "n_layer": sizes["layers"],
        "n_head": sizes["heads"],
        "n_inner": sizes["ffn"],
        "n_positions": 64,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "pad_token_id": PADDING,
        **options,
    }


def like_t5(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": width(sizes),
        "d_kv": sizes["head_dim"] + 2,
        "num_layers": sizes["layers"],
        "num_heads": sizes["heads"],
        "d_ff": sizes["ffn"],
        "pad_token_id": PADDING,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
    }


def like_vit(sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": width(sizes),
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["ffn"],
        "image_size": 8,
        "patch_size": 4,
    }


def joined(model: tf.PreTrainedModel) -> tf.PreTrainedModel:
    """An encoder with a decoder, which knows how texts begin."""
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id = 2, PADDING
    return model


ARCHITECTURES: dict[str, Callable[[Sizes], tf.PreTrainedModel]] = {
    "bert": lambda s: tf.BertForMaskedLM(tf.BertConfig(**like_bert(s))),
    "bert decoder": lambda s: tf.BertLMHeadModel(tf.BertConfig(**like_bert(s, is_decoder=True))),
    "bert generation": lambda s: tf.BertGenerationDecoder(
        tf.BertGenerationConfig(**like_bert(s, is_decoder=True))
    ),
    "roberta": lambda s: tf.RobertaForSequenceClassification(tf.RobertaConfig(**like_bert(s))),
    "xlm-roberta": lambda s: tf.XLMRobertaForMaskedLM(tf.XLMRobertaConfig(**like_bert(s))),
    "electra": lambda s: tf.ElectraForTokenClassification(tf.ElectraConfig(**like_bert(s))),
    "distilbert": lambda s: tf.DistilBertForMaskedLM(
        tf.DistilBertConfig(
            vocab_size=VOCABULARY,
            dim=width(s),
            n_layers=s["layers"],
            n_heads=s["heads"],
            hidden_dim=s["ffn"],
            max_position_embeddings=64,
            pad_token_id=PADDING,
        )
    ),
    "gpt2": lambda s: tf.GPT2LMHeadModel(tf.GPT2Config(**like_gpt2(s))),
    "llama": lambda s: tf.LlamaForCausalLM(tf.LlamaConfig(**like_llama(s))),
    "mistral": lambda s: tf.MistralForCausalLM(tf.MistralConfig(**like_llama(s, sliding_window=8))),
    "qwen2": lambda s: tf.Qwen2ForCausalLM(tf.Qwen2Config(**like_llama(s))),
    "qwen3": lambda s: tf.Qwen3ForCausalLM(tf.Qwen3Config(**like_llama(s, head_dim=10))),
    "gemma": lambda s: tf.GemmaForCausalLM(tf.GemmaConfig(**like_llama(s, head_dim=10))),
    "gemma2": lambda s: tf.Gemma2ForCausalLM(
        tf.Gemma2Config(**like_llama(s, head_dim=10, sliding_window=8))
    ),
    "granite": lambda s: tf.GraniteForCausalLM(tf.GraniteConfig(**like_llama(s))),
    "mixtral": lambda s: tf.MixtralForCausalLM(
        tf.MixtralConfig(**like_llama(s, **experts(s), num_local_experts=3))
    ),
    "modernbert": lambda s: tf.ModernBertForMaskedLM(
        tf.ModernBertConfig(**like_llama(s, cls_token_id=2, sep_token_id=3))
    ),
    "opt": lambda s: tf.OPTForCausalLM(
        tf.OPTConfig(**like_llama(s, ffn_dim=s["ffn"], word_embed_proj_dim=width(s)))
    ),
    "phi": lambda s: tf.PhiForCausalLM(tf.PhiConfig(**like_llama(s, partial_rotary_factor=1.0))),
    "phi3": lambda s: tf.Phi3ForCausalLM(tf.Phi3Config(**like_llama(s))),
    "qwen2 with experts": lambda s: tf.Qwen2MoeForCausalLM(
        tf.Qwen2MoeConfig(**like_llama(s, **experts(s), shared_expert_intermediate_size=s["ffn"]))
    ),
    "qwen3 with experts": lambda s: tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(**like_llama(s, **experts(s), head_dim=10))
    ),
    "qwen3-next": lambda s: tf.Qwen3NextForCausalLM(
        tf.Qwen3NextConfig(
            **like_llama(s, **experts(s), head_dim=16),
            shared_expert_intermediate_size=s["ffn"],
            layer_types=["full_attention"] * s["layers"],
        )
    ),
    "gemma3": lambda s: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**like_llama(s, head_dim=10, sliding_window=8))
    ),
    "cohere": lambda s: tf.CohereForCausalLM(tf.CohereConfig(**like_llama(s))),
    "olmo2": lambda s: tf.Olmo2ForCausalLM(tf.Olmo2Config(**like_llama(s))),
    "smollm3": lambda s: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**like_llama(s))),
    "starcoder2": lambda s: tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**like_llama(s))),
    "stablelm": lambda s: tf.StableLmForCausalLM(
        tf.StableLmConfig(**like_llama(s, partial_rotary_factor=1.0))
    ),
    "gpt-oss": lambda s: tf.GptOssForCausalLM(
        tf.GptOssConfig(**like_llama(s, **experts(s), num_local_experts=3, sliding_window=8))
    ),
    "gpt-neox": lambda s: tf.GPTNeoXForCausalLM(
        tf.GPTNeoXConfig(**like_llama(s, partial_rotary_factor=1.0))
    ),
    "gpt-j": lambda s: tf.GPTJForCausalLM(tf.GPTJConfig(**like_gpt2(s, rotary_dim=2))),
    "albert": lambda s: tf.AlbertForMaskedLM(tf.AlbertConfig(**like_bert(s))),
    "camembert": lambda s: tf.CamembertForMaskedLM(tf.CamembertConfig(**like_bert(s))),
    "mt5": lambda s: tf.MT5ForConditionalGeneration(tf.MT5Config(**like_t5(s))),
    "pegasus": lambda s: tf.PegasusForConditionalGeneration(tf.PegasusConfig(**like_bart(s))),
    "m2m100": lambda s: tf.M2M100ForConditionalGeneration(tf.M2M100Config(**like_bart(s))),
    "t5": lambda s: tf.T5ForConditionalGeneration(tf.T5Config(**like_t5(s))),
    "bart": lambda s: tf.BartForConditionalGeneration(tf.BartConfig(**like_bart(s))),
    "mbart": lambda s: tf.MBartForConditionalGeneration(tf.MBartConfig(**like_bart(s))),
    "marian": lambda s: tf.MarianMTModel(tf.MarianConfig(**like_bart(s))),
    "whisper": lambda s: tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            **like_bart(s), num_mel_bins=6, max_source_positions=8, max_target_positions=64
        )
    ),
    "vit": lambda s: tf.ViTForImageClassification(tf.ViTConfig(**like_vit(s))),
    "bert to bert": lambda s: joined(
        tf.EncoderDecoderModel(
            encoder=tf.BertModel(tf.BertConfig(**like_bert(s))),
            decoder=tf.BertLMHeadModel(
                tf.BertConfig(**like_bert(s, is_decoder=True, add_cross_attention=True))
            ),
        )
    ),
    "vit to gpt2": lambda s: joined(
        tf.VisionEncoderDecoderModel(
            encoder=tf.ViTModel(tf.ViTConfig(**like_vit(s))),
            decoder=tf.GPT2LMHeadModel(tf.GPT2Config(**like_gpt2(s, add_cross_attention=True))),
        )
    ),
}
GENERATING = [
    *("bert decoder", "bert generation", "gpt2", "llama", "mistral", "qwen2", "qwen3"),
    *("gemma", "gemma2", "granite", "mixtral", "opt", "phi", "phi3"),
    *("qwen2 with experts", "qwen3 with experts", "qwen3-next"),
    *("gemma3", "cohere", "olmo2", "smollm3", "starcoder2", "stablelm", "gpt-oss"),
    *("gpt-neox", "gpt-j", "mt5", "pegasus", "m2m100"),
    *("t5", "bart", "mbart", "marian", "whisper", "bert to bert", "vit to gpt2"),
]


def tiny(name: str, seed: int = 0, sizes: Sizes | None = None) -> tf.PreTrainedModel:
    """A tiny model of an architecture in evaluation, whose weights are large enough to matter."""
    torch.manual_seed(seed)
    model = ARCHITECTURES[name](sizes or tiny_sizes()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.0 if name in ("t5", "mt5") else 4.0)
    if model.can_generate():
        model.generation_config.eos_token_id = None  # all texts are of the same length
        model.generation_config.suppress_tokens = None
        model.generation_config.begin_suppress_tokens = None
    return model


def set_attention(model: tf.PreTrainedModel, implementation: str) -> None:
    """Has a model attend by an implementation, or by plain operators if it has not got it."""
    able = implementation != "sdpa" or model._supports_sdpa
    model.set_attn_implementation(implementation if able else "eager")


def token_mask(batch: int, time: int, draw: Draw, side: str | None = None) -> Tensor:
    """An attention mask with padding on one side, of other lengths in each row."""
    mask = torch.ones(batch, time, dtype=torch.long)
    side = side or draw.choice(["left", "right"])
    for row in mask[1:]:
        padding = draw.randint(0, time - 1)
        row[slice(None, padding) if side == "left" else slice(time - padding, None)] = 0
    return mask


def source(
    model: tf.PreTrainedModel, draw: Draw, *, batch: int = 3, time: int = 6, side: str | None = None
) -> dict[str, Tensor]:
    """What the model reads: `generate` takes it as it is."""
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(batch, 3, 8, 8)}
    if model.main_input_name == "input_features":
        return {"input_features": torch.randn(batch, 6, 16)}
    mask = token_mask(batch, time, draw, side)
    tokens = torch.randint(FIRST, VOCABULARY, (batch, time))
    return {"input_ids": tokens.masked_fill(mask == 0, PADDING), "attention_mask": mask}


def inputs(
    model: tf.PreTrainedModel, draw: Draw, *, batch: int = 3, time: int = 6, side: str | None = None
) -> dict[str, Tensor]:
    """What the model's forward takes: `source`, and what is decoded after it."""
    read = source(model, draw, batch=batch, time=time, side=side)
    if model.config.is_encoder_decoder:
        length = draw.randint(2, time)
        read["decoder_input_ids"] = torch.randint(FIRST, VOCABULARY, (batch, length))
        read["decoder_attention_mask"] = token_mask(batch, length, draw, "right")
    return read
