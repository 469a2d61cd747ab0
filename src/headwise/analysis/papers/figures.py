"""A figure that a paper prints and ours, and the models that papers describe, to count them.

Models are built on the meta device, where they take no memory.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from headwise.analysis.cost import count_parameters, forward_macs, parameters_by_part
from headwise.heads.system import Macs
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.models.seq2seq import Seq2SeqLMConfig
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.models.transformer import DecoderStack, EncoderStack

# How far our figure may be from a printed one and still agree with it, relative to it. Where the
# printed figure is rounded more coarsely, half of its last digit is allowed.
TOLERANCES = {"MACs": 0.005, "params": 0.015}

_UNITS = {"": 1.0, "M": 1e6, "G": 1e9, "%": 1e-2}
_NUMBER = re.compile(r"([\d.]+)([MG%]?)")


class Printed(NamedTuple):
    """A printed figure: a number, or a range of numbers."""

    low: float
    high: float
    unit: str
    decimals: int

    @classmethod
    def parse(cls, text: str) -> "Printed":
        """Reads a printed figure.

        >>> Printed.parse("+12.6M")
        Printed(low=12600000.0, high=12600000.0, unit='M', decimals=1)
        >>> Printed.parse("3–5%")
        Printed(low=0.03, high=0.05, unit='%', decimals=0)
        """
        numbers = _NUMBER.findall(text.replace(",", ""))
        last, unit = numbers[-1]  # of a range, only the second number has the unit
        low, high = (float(number) * _UNITS[unit] for number in (numbers[0][0], last))
        return cls(low, high, unit, len(last.partition(".")[2]))

    @property
    def rounding(self) -> float:
        """How much rounding to the printed digits may change a number."""
        return 0.5 * 10**-self.decimals * _UNITS[self.unit] if self.low == self.high else 0.0


@dataclass(frozen=True)
class Figure:
    """One published figure and ours.

    Attributes:
        model: the model that it describes.
        what: the quantity: `params`, `MACs`, `share` or `entropy`.
        printed: the figure as the paper prints it: `65M`, `+12.6M`, `192`, `3–5%`.
        ours: our figure; None if headwise cannot compute it.
        words: the size of the vocabulary that we assume; empty if it does not matter.
        remark: why our figure differs or is missing, or what else we assume.
        exact: whether only the same number agrees.
    """

    model: str
    what: str
    printed: str
    ours: float | None
    words: str = ""
    remark: str = ""
    exact: bool = False

    @property
    def agrees(self) -> bool | None:
        """Whether our figure agrees with the paper's; None if there is none of ours."""
        if self.ours is None:
            return None
        printed = Printed.parse(self.printed)
        if self.exact:
            return self.ours == printed.low
        tolerance = TOLERANCES.get(self.what, 0.0)
        below = max(tolerance * printed.low, printed.rounding)
        above = max(tolerance * printed.high, printed.rounding)
        return printed.low - below <= self.ours <= printed.high + above

    @property
    def shown(self) -> str:
        """Our figure in the unit of the paper's."""
        if self.ours is None:
            return "–"
        printed = Printed.parse(self.printed)
        sign = "+" if self.printed.startswith("+") else ""
        if self.exact:
            return f"{sign}{self.ours:,.0f}"
        digits = max(2, printed.decimals)
        return f"{sign}{self.ours / _UNITS[printed.unit]:.{digits}f}{printed.unit}"

    @property
    def difference(self) -> str:
        """How far our figure is from the paper's."""
        if self.ours is None:
            return "–"
        printed = Printed.parse(self.printed)
        off = self.ours - printed.low
        if self.exact:
            return "exact" if self.agrees else f"≠ {off:+,.0f}"
        if printed.low < printed.high:
            return "within" if self.agrees else "≠ outside"
        return f"{'' if self.agrees else '≠ '}{off / printed.low:+.1%}"


@dataclass(frozen=True)
class Paper:
    """The figures of one paper.

    Attributes:
        title: the authors, the year, the subject and the tables.
        note: what we assume for all figures.
        figures: the figures in the order of the paper's tables.
    """

    title: str
    note: str
    figures: tuple[Figure, ...]


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
    config = Seq2SeqLMConfig(**json.loads(settings))
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
    """Counts the parameters of the language model of Baevski and Auli for WikiText-103."""
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
