"""The figures that the papers print on the cost of their models, with ours.

The numbers of parameters and of multiply-accumulates follow from the equations of a system and the
sizes of a model alone. If ours agree with the published ones, we read the equations as their
authors do. The totals depend on the size of the vocabulary, which papers rarely give. Each figure
names the size that we assume. `papers.yaml` is the table; ours are counted on models on the meta
device, where they take no memory.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import nn

from headwise.analysis.cost import Macs, count_parameters, forward_macs, parameters_by_part
from headwise.models.config import (
    CausalLMConfig,
    MaskedLMConfig,
    Seq2SeqLMConfig,
    SpeechEnhancerConfig,
)
from headwise.models.for_tasks import CausalLM, MaskedLM, Seq2SeqLM
from headwise.models.modeling import HeadwiseModel
from headwise.models.parameters import gate_parameters, output_parameters
from headwise.models.plan import build_system
from headwise.models.speech import SpeechEnhancer
from headwise.yaml import read_yaml

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
        """Reads a printed figure."""
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
    """One published figure and ours."""

    model: str
    what: str  # the quantity: `params`, `MACs`, `share` or `entropy`
    printed: str  # as the paper prints it: `65M`, `+12.6M`, `192`, `3–5%`
    ours: float | None  # None if headwise cannot compute it
    words: str = ""  # the size of the vocabulary that we assume; empty if it does not matter
    remark: str = ""  # why ours differs or is missing, or what else we assume
    exact: bool = False  # whether only the same number agrees

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
    """The figures of one paper, in the order of its tables."""

    title: str  # the authors, the year, the subject and the tables
    note: str  # what we assume for all figures
    figures: tuple[Figure, ...]


# --- the table --------------------------------------------------------------------------------


def published_figures() -> list[Paper]:
    """Returns the figures of all papers, in the order of publication."""
    file = resources.files("headwise") / "analysis" / "papers.yaml"
    return [
        Paper(paper["title"], paper["note"], tuple(_figures(paper["figures"])))
        for paper in read_yaml(file.read_text(encoding="utf-8"))["papers"]
    ]


def _figures(rows: Iterable[Mapping[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        yield _figure(row)
        if (own := row.get("macs")) is not None:
            macs = {**row, "what": "MACs", "remark": "", **own}
            if "ours" in row:
                macs["ours"] = {**row["ours"], "part": own.get("part", "linear MACs")}
            yield _figure(macs)


def _figure(row: Mapping[str, Any]) -> Figure:
    words = row.get("words", 0)
    ours: Any = _sum(row["ours"], words) if "ours" in row else None
    if "over" in row:
        ours = ours / _sum(row["over"], words)
    return Figure(
        row["model"],
        row.get("what", "params"),
        row["printed"],
        1 - ours if row.get("saving") else ours,
        f"{words:,}" if words else "",
        row.get("remark", ""),
        row.get("exact", False),
    )


def _sum(terms: Any, words: int) -> Any:
    return sum(_counted(term, words) for term in (terms if isinstance(terms, list) else [terms]))


def _counted(term: Any, words: int) -> Any:
    """The number that a term of the table stands for."""
    if not isinstance(term, Mapping):
        return term
    sizes = dict(term)
    kind = next(key for key in sizes if key in _MODELS)
    plan, part, times = sizes.pop(kind), sizes.pop("part", "all"), sizes.pop("times", 1)
    less = sizes.pop("minus", None)

    def count(plan: Any) -> Any:
        with torch.device("meta"):
            return _PARTS[part](_MODELS[kind](plan, words, **sizes))

    return times * (count(plan) if less is None else count(plan) - count(less))


# --- the models that ours are counted on ------------------------------------------------------


def encoder_decoder(plan: Any, words: int, **sizes: Any) -> Seq2SeqLM:
    """Returns a translation model with one embedding for all, by default the base Transformer."""
    return Seq2SeqLM(Seq2SeqLMConfig(vocab_size=words or 32, attention=plan, **sizes))


def masked_model(plan: Any, words: int, **sizes: Any) -> MaskedLM:
    """Returns a masked language model with 512 learned positions and BERT's norm behind them."""
    own: dict[str, Any] = {"positions": "learned", "embedding_norm": True}
    return MaskedLM(MaskedLMConfig(vocab_size=words or 32, attention=plan, **own, **sizes))


def language_model(plan: Any, words: int, **sizes: Any) -> CausalLM:
    """Returns a language model with norms before its sub-layers."""
    return CausalLM(CausalLMConfig(vocab_size=words, attention=plan, norm="pre", **sizes))


def image_model(plan: Any, words: int, **sizes: Any) -> CausalLM:
    """Returns the TIM paper's model of images of 32×32 in 512 colours."""
    own = {"share_embeddings": False, "positions": "learned", "max_positions": 1024}
    return language_model(plan, words + 1, **own, **sizes)  # a token stands before the first pixel


def _speech_enhancer(plan: Any, _: int, **sizes: Any) -> SpeechEnhancer:
    return SpeechEnhancer(SpeechEnhancerConfig(attention=plan, **sizes))


def _llama(_: Any, words: int, **sizes: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM  # imported here: other tables need none

    return LlamaForCausalLM(LlamaConfig(vocab_size=words, **sizes))


def _layer(plan: Any, _: int, embed_dim: int, num_heads: int) -> nn.Module:
    spec = plan if isinstance(plan, dict) else {"system": plan}
    config = CausalLMConfig(embed_dim=embed_dim, num_heads=num_heads, ffn_dim=4 * embed_dim)
    return build_system(spec, config, "decoder_self", 0)


def _macs(model: HeadwiseModel) -> Macs:
    """Those of 128 tokens of a masked language model, or of 10 in each stack for translation."""
    if isinstance(model, Seq2SeqLM):
        return forward_macs(model, {"encoder": 10, "decoder": 10})
    return forward_macs(model, {"encoder": 128})


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


_MODELS: dict[str, Callable[..., nn.Module]] = {
    "stack": encoder_decoder,
    "masked": masked_model,
    "image": image_model,
    "language": language_model,
    "speech": _speech_enhancer,
    "llama": _llama,
    "layer": _layer,
}
_PARTS: dict[str, Callable[[Any], Any]] = {
    "all": count_parameters,
    "layers": lambda model: count_parameters(model.encoder.layers),
    "routing": lambda model: parameters_by_part(model).routing,
    "gates": lambda model: _size(gate_parameters(model)),
    "outputs": lambda model: _size(output_parameters(model)),
    # Without biases and scalars.
    "matrices": lambda model: _size(
        parameter for name, parameter in model.named_parameters() if name.endswith("weight")
    ),
    "heads in force": lambda model: (model.shared_heads + model.top_k) / model.num_heads,
    "linear MACs": lambda model: _macs(model).linear,
    "MACs": lambda model: sum(_macs(model)),
}
