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
from math import inf
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
        option = ablation_option(name)
        value = options.get(option or "", 0)
        self.name = name
        self.top_k = int(name in ("largest", "without-largest"))
        if option == "top_k":  # no more than the system chooses itself
            max_top_k = getattr(system, "top_k", None) or system.num_units
            self.top_k = checked_index(str(option), value, 1, max_top_k)
        self.units: tuple[int, ...] = ()
        if name.startswith(("without-", "only-")) and name != "without-largest":
            num_units = system.num_heads if option == "head" else system.num_units
            is_list = isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0
            units = value if is_list else [value]
            self.units = tuple(checked_index(str(option), unit, 0, num_units - 1) for unit in units)
            left = len(set(self.units))
            if name.startswith("without-"):
                left = num_units - left
            if not left:
                raise ValueError(f"ablation {name!r} leaves out all {num_units}: nothing is left")
        if name == "without-largest" and system.num_units == 1:
            raise ValueError(f"ablation {name!r} leaves out its only {system.unit}")
        # Other draws for each layer; drawn anew at each call, so that steps of decoding agree.
        seed = int(value) if option == "seed" else 0
        self.random_key = f"{seed} {system.site} {system.layer}"

    def heads(self, heads: Tensor) -> Tensor:
        """Outputs of heads, `(batch, heads, time, head_dim)`, with zeros for heads left out."""
        if self.name not in HEADS:
            return heads
        return heads * self.unit_mask(heads.size(1), heads.device).view(-1, 1, 1)

    def weights(self, weights: Tensor, active: Tensor | None = None) -> Tensor:
        """Decision weights `(..., units)`; `active` is `True` at units that count, if not all."""
        if self.name in HEADS:
            return weights
        total = weights.sum(-1, keepdim=True)
        mask = torch.ones_like(weights) if active is None else active.to(weights)
        if self.name == "uniform":
            return mask * total / mask.sum(-1, keepdim=True)
        if self.name == "random":
            point = random_simplex(weights.size(-1), generator=self._generator()).to(weights)
            point = mask * point
            return point * (total / point.sum(-1, keepdim=True))
        if self.top_k:
            indices = weights.topk(min(self.top_k, weights.size(-1))).indices
            largest = torch.zeros_like(weights).scatter(-1, indices, 1.0)
            mask = mask * (1 - largest if self.name == "without-largest" else largest)
        else:
            mask = mask * self.unit_mask(weights.size(-1), weights.device)
        remaining = weights * mask
        remaining_sum = remaining.sum(-1, keepdim=True)
        shares = remaining / remaining_sum.clamp(min=torch.finfo(weights.dtype).tiny)
        uniform = mask / mask.sum(-1, keepdim=True).clamp(min=1)  # if the units left weigh nothing
        return total * torch.where(remaining_sum > 0, shares, uniform)

    def logits(self, logits: Tensor, top_k: int) -> tuple[Tensor, int]:
        """Logits of a router, `(..., units)`, and the number of units that a position selects."""
        units = logits.size(-1)
        if self.name == "random":
            selected = torch.randperm(units, generator=self._generator())[:top_k].to(logits.device)
            weights = random_simplex(len(selected), generator=self._generator()).to(logits)
            log_weights = weights.log().expand(*logits.shape[:-1], -1)
            excluded = torch.full_like(logits[..., :1], -inf).expand_as(logits)
            return excluded.index_copy(-1, selected, log_weights), top_k
        if self.name == "without-largest":
            largest = logits.argmax(-1, keepdim=True)
            return logits.scatter(-1, largest, -inf), min(top_k, units - 1)
        if self.top_k:
            return logits, min(self.top_k, top_k)
        if self.units and self.name not in HEADS:
            mask = self.unit_mask(units, logits.device) > 0
            return logits.masked_fill(~mask, -inf), min(top_k, int(mask.sum()))
        return logits, top_k

    def unit_mask(self, num_units: int, device: torch.device) -> Tensor:
        """`(num_units,)`, 1 at units that are left and 0 at other units."""
        named = torch.zeros(num_units, device="cpu")
        named[list(self.units)] = 1.0
        return (1 - named if self.name.startswith("without-") else named).to(device)

    def _generator(self) -> torch.Generator:
        return torch.Generator("cpu").manual_seed(crc32(self.random_key.encode()))


def check_ablation(
    system: str, supported: Sequence[str], name: str, options: Mapping[str, Any]
) -> None:
    """Raises `ValueError` unless a system with these ablations has this one and its option."""
    if name not in supported:
        raise ValueError(
            f"ablation of {system} is {name!r}, expected one of {', '.join(supported) or 'none'}"
            f"{did_you_mean(name, supported)}"
        )
    option = ablation_option(name)
    for key in options:
        if key != option:
            expected = "no option" if option is None else f"the option {option!r}"
            raise ValueError(f"ablation {name!r} of {system} has {key!r}, expected {expected}")
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
    uniform = torch.rand(entries, generator=generator, dtype=torch.float64, device="cpu")
    exponential = -torch.log1p(-uniform)
    return (exponential / exponential.sum()).float()


def ablation_option(name: str) -> str | None:
    """The name of the option of an ablation, or None.

    >>> [ablation_option(name) for name in ("without-expert", "top-k", "uniform")]
    ['expert', 'top_k', None]
    """
    if name in WEIGHTS:
        return WEIGHTS[name][0]
    return name.removeprefix("without-").removeprefix("only-")


def ablation_meaning(name: str) -> str:
    """The meaning of an ablation, in a sentence.

    >>> ablation_meaning("only-head")
    'One head alone is left.'
    """
    if name in WEIGHTS:
        return WEIGHTS[name][1]
    unit = ablation_option(name)
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
    by_unit = (f"without-{unit}", f"only-{unit}")
    return (*WEIGHTS, *dict.fromkeys((*by_unit, *(HEADS if heads else ()))))
