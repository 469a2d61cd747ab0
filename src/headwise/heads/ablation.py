"""Ablations: a trained system evaluated with other decisions than its own.

The papers' ablations change the decision weights of a system:

    uniform           all units that count have equal weights (table 3 of the Weighted paper)
    random            a random point of the simplex, the same everywhere in a layer (same table)
    largest           the unit of largest weight alone (table 5 of the MAE paper)
    without-largest   all units but the one of largest weight
    top-k             the `top_k` units of largest weight alone
    without-UNIT      all units but some: `expert=3`, `mechanism=0`, `head=[0, 1]`
    only-UNIT         these units alone

The weights of the units that are left keep their proportions, and their former sum. A router (MoA,
MoH) selects other units in the place of units that are left out; there `random` is also a random
selection, and `top-k` selects fewer units than in training. Heads that are left out add nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from headwise.messages import checked_index, did_you_mean

HEADS = ("without-head", "only-head")  # of all attentions whose heads are the same at each position
# From an ablation of weights to its option, and to its meaning.
WEIGHTS: dict[str, tuple[str | None, str]] = {
    "uniform": (None, "All units that count have equal weights."),
    "random": ("seed", "All decisions of a layer are one random decision."),
    "largest": (None, "The unit of largest weight alone is in force."),
    "without-largest": (None, "The unit of largest weight is left out."),
    "top-k": ("top_k", "The units of largest weight alone are in force."),
}
_BARRED = float("-inf")


class Ablation:
    """One change of a system's decisions.

    Args:
        system: the system.
        name: one of the system's `supported_ablations`.
        options: `UNIT=3` or `UNIT=[0, 1]` for `without-UNIT` and `only-UNIT`, `top_k` for `top-k`,
            and `seed` for `random` (0 by default).

    Raises:
        ValueError: the system has no such ablation, or the option does not fit it.
    """

    def __init__(self, system: Any, name: str, **options: Any) -> None:
        check_ablation(type(system).__name__, system.supported_ablations, name, options)
        self.name, option = name, option_of(name)
        value = options.get(option or "", 0)
        self.seed = int(value) if option == "seed" else 0
        most = getattr(system, "top_k", None) or system.num_units  # no more than it chooses itself
        self.top_k = int(name in ("largest", "without-largest"))
        if option == "top_k":
            self.top_k = checked_index(str(option), value, 1, most)
        self.units: tuple[int, ...] = ()
        if name.startswith(("without-", "only-")) and name != "without-largest":
            units = system.num_heads if option == "head" else system.num_units
            has_several = isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0
            several = value if has_several else [value]
            self.units = tuple(checked_index(str(option), unit, 0, units - 1) for unit in several)
            if name.startswith("without-") and len(set(self.units)) == units:
                raise ValueError(f"ablation {name!r} leaves out all {units}: nothing is left")
        if name == "without-largest" and system.num_units == 1:
            raise ValueError(f"ablation {name!r} leaves out its only {system.unit}")
        # Other draws for each layer; drawn anew at each call, so that steps of decoding agree.
        self.draw = f"{self.seed} {system.site} {system.layer}"

    def heads(self, heads: Tensor) -> Tensor:
        """Outputs of heads, `(batch, heads, time, head_dim)`, with zeros for heads left out."""
        if self.name not in HEADS:
            return heads
        kept = self.kept(heads.size(1), heads.device)
        return heads * kept.view(-1, 1, 1)

    def weights(self, weights: Tensor, active: Tensor | None = None) -> Tensor:
        """Decision weights `(..., units)`; `active` is `True` at units that count, if not all."""
        if self.name in HEADS:
            return weights
        total = weights.sum(-1, keepdim=True)
        kept = torch.ones_like(weights) if active is None else active.to(weights)
        if self.name == "uniform":
            return kept * total / kept.sum(-1, keepdim=True)
        if self.name == "random":
            drawn = random_simplex(weights.size(-1), generator=self._generator()).to(weights)
            left = kept * drawn
            return left * (total / left.sum(-1, keepdim=True))
        if self.top_k:
            largest = weights.topk(min(self.top_k, weights.size(-1))).indices
            best = torch.zeros_like(weights).scatter(-1, largest, 1.0)
            kept = kept * (1 - best if self.name == "without-largest" else best)
        else:
            kept = kept * self.kept(weights.size(-1), weights.device)
        left = weights * kept
        sum_left = left.sum(-1, keepdim=True)
        even = kept / kept.sum(-1, keepdim=True).clamp(min=1)  # where the others have no weight
        smallest = torch.finfo(weights.dtype).tiny
        return total * torch.where(sum_left > 0, left / sum_left.clamp(min=smallest), even)

    def logits(self, logits: Tensor, top_k: int) -> tuple[Tensor, int]:
        """Logits of a router, `(..., units)`, and the number of units that a position selects."""
        units = logits.size(-1)
        if self.name == "random":
            drawn = torch.randperm(units, generator=self._generator())[:top_k].to(logits.device)
            weights = random_simplex(len(drawn), generator=self._generator()).to(logits)
            barred = torch.full_like(logits[..., :1], _BARRED).expand_as(logits)
            return barred.index_copy(-1, drawn, weights.log().expand(*logits.shape[:-1], -1)), top_k
        if self.name == "without-largest":
            best = logits.argmax(-1, keepdim=True)
            return logits.scatter(-1, best, _BARRED), min(top_k, units - 1)
        if self.top_k:
            return logits, min(self.top_k, top_k)
        if self.units and self.name not in HEADS:
            kept = self.kept(units, logits.device) > 0
            return logits.masked_fill(~kept, _BARRED), min(top_k, int(kept.sum()))
        return logits, top_k

    def kept(self, units: int, device: torch.device) -> Tensor:
        """`(units,)`, 1 at units that are left and 0 at other units."""
        named = torch.zeros(units, device="cpu")
        named[list(self.units)] = 1.0
        return (1 - named if self.name.startswith("without-") else named).to(device)

    def _generator(self) -> torch.Generator:
        return torch.Generator("cpu").manual_seed(crc32(self.draw.encode()))


def check_ablation(
    system: str, supported: Sequence[str], name: str, options: Mapping[str, Any]
) -> None:
    """Raises `ValueError` unless a system with these ablations has this one and its option."""
    if name not in supported:
        raise ValueError(
            f"ablation of {system} is {name!r}, expected one of {', '.join(supported) or 'none'}"
            f"{did_you_mean(name, supported)}"
        )
    option = option_of(name)
    for given in options:
        if given != option:
            expected = "no option" if option is None else f"the option {option!r}"
            raise ValueError(f"ablation {name!r} of {system} has {given!r}, expected {expected}")
    if option not in (None, "seed", *options):
        raise ValueError(
            f"ablation {name!r} of {system} lacks the option {option!r}: give it a number, such as "
            f"{option}=1"
        )


def random_simplex(entries: int, *, generator: torch.Generator | None = None) -> Tensor:
    """A random point of the simplex, `(entries,)`, each as likely as any other: Dirichlet(1, …, 1).

    >>> random_simplex(1)
    tensor([1.])
    """
    # Exponential draws divided by their sum. 1 − u is never 0, whose logarithm is infinite.
    drawn = torch.rand(entries, generator=generator, dtype=torch.float64, device="cpu")
    draws = -torch.log1p(-drawn)
    return (draws / draws.sum()).float()


def option_of(name: str) -> str | None:
    """The name of the option of an ablation, or None.

    >>> option_of("without-expert"), option_of("top-k"), option_of("uniform")
    ('expert', 'top_k', None)
    """
    if name in WEIGHTS:
        return WEIGHTS[name][0]
    return name.removeprefix("without-").removeprefix("only-")


def meaning_of(name: str) -> str:
    """The meaning of an ablation, in a sentence.

    >>> meaning_of("only-head")
    'One head alone is left.'
    """
    if name in WEIGHTS:
        return WEIGHTS[name][1]
    unit = option_of(name)
    if name.startswith("only-"):
        return f"One {unit} alone is left."
    if name in HEADS:
        return "One head adds nothing."
    return f"One {unit} is left out; the others have its weight."


def ablations_of(unit: str, *, heads: bool = True) -> tuple[str, ...]:
    """The ablations of a system that weighs such units, with or without `HEADS`.

    >>> ablations_of("mechanism", heads=False)[-2:]
    ('without-mechanism', 'only-mechanism')
    """
    own = (f"without-{unit}", f"only-{unit}")
    return (*WEIGHTS, *dict.fromkeys((*own, *(HEADS if heads else ()))))
