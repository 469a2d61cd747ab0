"""The models that the papers describe, on the meta device, and what is counted of them."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from headwise.analysis.cost import count_parameters, forward_macs, parameters_by_part
from headwise.heads.system import Macs
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.models.seq2seq import Seq2SeqConfig
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.models.transformer import DecoderStack, EncoderStack


@dataclass(frozen=True)
class Stack:
    """The layers of a model on the meta device, without embeddings."""

    layers: nn.ModuleDict
    width: int

    def parameters(self, words: int) -> int:
        """Returns the number of parameters, with an embedding for each of `words` words."""
        return count_parameters(self.layers) + words * self.width

    def macs(self, length: int, words: int) -> Macs:
        """Returns the multiply-accumulates for `length` tokens in each stack.

        They include the output over `words` words.
        """
        lengths = dict.fromkeys(self.layers, length)
        return forward_macs(self.layers, lengths) + Macs(length * words * self.width, 0)

    @property
    def routing(self) -> int:
        """The number of parameters that decide how heads are combined."""
        return parameters_by_part(self.layers).routing


def encoder_decoder(plan: Any, **sizes: int) -> Stack:
    """Returns the layers of a translation model, by default those of the base Transformer."""
    return _stack(json.dumps({"attention": plan, **sizes}, sort_keys=True))


@cache
def _stack(settings: str) -> Stack:
    config = Seq2SeqConfig(**json.loads(settings))
    with torch.device("meta"):
        layers = {"encoder": EncoderStack(config), "decoder": DecoderStack(config)}
    return Stack(nn.ModuleDict(layers), config.embed_dim)


def masked_model(plan: Any, words: int, **sizes: int) -> MaskedLM:
    """Returns a masked language model on the meta device with 512 learned positions."""
    config = MaskedLMConfig(words, attention=plan, positions="learned", **sizes)
    with torch.device("meta"):
        return MaskedLM(config)


def image_model(plan: Any, **sizes: int) -> CausalLM:
    """Returns the TIM paper's model of images of 32×32 in 512 colours, on the meta device."""
    config = CausalLMConfig(
        513,  # and the token before the first pixel
        attention=plan,
        norm="pre",
        share_embeddings=False,
        positions="learned",
        max_positions=1024,
        adaptive_cutoffs=None,
        **sizes,
    )
    with torch.device("meta"):
        return CausalLM(config)


def layers_of(plan: Any, **sizes: int) -> int:
    """Returns the number of parameters of the layers of a masked language model."""
    return count_parameters(masked_model(plan, 32, **sizes).encoder.layers)


def language_model(plan: Any) -> int:
    """Returns the number of parameters of Baevski and Auli's language model for WikiText-103."""
    config = CausalLMConfig(
        vocab_size=267_735,
        embed_dim=1024,
        num_heads=8,
        ffn_dim=4096,
        layers=16,
        attention=plan,
        norm="pre",
        adaptive_cutoffs=[20_000, 60_000],
    )
    with torch.device("meta"):
        return count_parameters(CausalLM(config))


def speech_enhancer(plan: Any, embed_dim: int) -> int:
    """Returns the number of parameters of the TIM paper's model of speech enhancement."""
    config = SpeechEnhancerConfig(embed_dim=embed_dim, ffn_dim=embed_dim, attention=plan)
    with torch.device("meta"):
        return count_parameters(SpeechEnhancer(config))


def matrices(module: nn.Module) -> int:
    """Returns the number of parameters without biases and scalars."""
    return sum(p.numel() for name, p in module.named_parameters() if name.endswith("weight"))
