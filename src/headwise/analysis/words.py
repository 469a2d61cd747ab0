"""How pages speak of what a system decides, made from the one word that it says of itself."""

from typing import ClassVar, Literal

from torch import nn

from headwise.analysis.decisions.places import places_of
from headwise.tasks.scores import Record

Measure = Literal["lead", "choice", "weight"]


class Words(Record):
    """What the weights of a decision belong to; stored with results, so that pages need no model.

    Attributes:
        unit, units: what it is called, and several of them.
        entropy, share: what the entropy of the weights and a unit's share mean; the sentences
            begin with these words.

    Example:
        >>> Words.of("branch").units
        'branches'
    """

    unit: str = "unit"
    units: str = "units"

    entropy: ClassVar[str] = (
        "says how evenly the weights of a decision, divided by their sum, are spread: on the "
        "dashed line all that count have the same, near 0 a single one has all."
    )
    share: ClassVar[str] = (
        "is how often a unit is among those chosen, where a system chooses; how often its weight "
        "is the largest, where experts or mechanisms compete; and its mean weight elsewhere."
    )

    @classmethod
    def of(cls, unit: str) -> "Words":
        """The words for a system's `unit`."""
        ending = "es" if unit.endswith(("s", "x", "z", "ch", "sh")) else "s"
        return cls(unit=unit, units=f"{unit}{ending}")


def words_of(model: nn.Module) -> dict[str, Words]:
    """The words for each kind of system in a model, by its name in plans."""
    return {place.name: Words.of(place.module.unit) for place in places_of(model)}


def measure_of(unit: str, chooses: bool) -> Measure:
    """What a unit's share of the work is, see `Words.share`."""
    if chooses:
        return "choice"
    return "lead" if unit in ("expert", "mechanism") else "weight"
