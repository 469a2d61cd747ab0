"""Questions why a system does worse, or better, than its paper says: one key of a recipe is varied.

A question is an entry of `catalogue/questions.yaml`, below the scale at which it is asked. At each
of its points all systems are trained anew with another value of the key; at the value that the
experiment has anyway its runs are taken.
"""

from collections.abc import Collection, Iterable
from functools import cache
from typing import Annotated, Literal, Self, get_args

import yaml
from pydantic import BeforeValidator, Field, model_validator

from evidence import claims
from evidence.claims import SCALES, Claim, Declared, OfRuns, Quantity, Scale, all_claims
from evidence.experiments import Conditions, Places, recipe_hash
from headwise.messages import one_of
from headwise.yaml import read_yaml

Value = float | int | bool | Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # names a folder


def _of_kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class Question(Declared):
    """What is varied, of which systems, and what is told of it: docs/practice.md has the keys."""

    name: str
    scale: Scale
    asks: str
    claims: tuple[str, ...] = ()
    experiment: str
    dataset: str | None = None
    systems: tuple[str, ...] = Field(min_length=2)
    over: str
    at: tuple[Value, ...] = Field(min_length=2)
    own: Value | None = None
    changes: tuple[str, ...] = ()
    learning_rate: Literal["of the experiment", "chosen at every point"] = "of the experiment"
    quantity: Annotated[Quantity, BeforeValidator(_of_kind)]
    margin: float = Field(gt=0)
    note: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key, names in (("at", self.at), ("systems", self.systems)):
            if len({str(name) for name in names}) < len(names):
                raise ValueError(f"{key} names something twice, expected each once")
        if self.quantity.kind not in get_args(OfRuns):
            raise ValueError(
                f"quantity is {self.quantity.kind}, expected one of {', '.join(get_args(OfRuns))}"
            )
        if self.own is not None and self.own not in self.at:
            raise ValueError(f"own is {self.own}, expected one of the values of at")
        parts = self.over.split(".")
        if parts[0] == "systems" and self.systems[1:] != (parts[1],):
            raise ValueError(
                f"{self.over} changes {parts[1]} alone, expected systems to be the baseline and it"
            )
        return self

    @property
    def tuned_at_every_point(self) -> bool:
        """Returns whether systems choose tuned values anew at every point."""
        return self.learning_rate == "chosen at every point"

    def conditions(self, value: Value, system: str, places: Places) -> Conditions:
        """Returns under what conditions a system is trained at a value."""
        changed = self.changed(value, places)
        own = changed.unchanged
        if value == self.own:  # the changes may not go with it
            return own
        if self.tuned_at_every_point:
            recipes = [each.plain.system(system, self.dataset) for each in (changed, own)]
        else:
            recipes = [each.recipe(system, self.dataset) for each in (changed, own)]
        return own if recipe_hash(recipes[0]) == recipe_hash(recipes[1]) else changed

    def runs(self, places: Places) -> list[tuple[Conditions, list[str]]]:
        """Returns what is to be trained: conditions, those of the experiment first, and systems."""
        found: dict[Conditions, list[str]] = {}
        for value in self.at:
            for system in self.systems:
                some = found.setdefault(self.conditions(value, system, places), [])
                some += [system] * (system not in some)
        return sorted(found.items(), key=lambda item: bool(item[0].at))

    def changed(self, value: Value, places: Places) -> Conditions:
        """Returns the conditions at a value, whether or not they are those of the experiment."""
        shown = yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()
        return Conditions(
            self.scale,
            self.experiment,
            places,
            changes=(*self.changes, f"{self.over}={shown}"),
            at=f"{self.name}/{value}",
            chooses=self.tuned_at_every_point,
        )


def all_questions(scale: Scale) -> dict[str, Question]:
    """Returns the questions that are asked at a scale, by their names."""
    return _declared((claims.CATALOGUE / "questions.yaml").read_text(encoding="utf-8"), scale)


@cache
def _declared(text: str, scale: Scale) -> dict[str, Question]:
    of_scale = (read_yaml(text) or {}).get(scale) or {}
    return {name: Question(name=name, scale=scale, **of) for name, of in of_scale.items()}


def find_questions(names: list[str], scale: Scale) -> dict[str, Question]:
    """Returns questions of a scale by their names; without any, all of them."""
    known = all_questions(scale)
    _check(names, known, scale, "question")
    return {name: known[name] for name in names or known}


def claims_and_questions(
    names: list[str], scale: Scale
) -> tuple[dict[str, Claim], dict[str, Question]]:
    """Returns the claims and the questions that are asked for; without names, all claims."""
    known, questions = all_claims(), all_questions(scale)
    _check(names, {**known, **questions}, scale, "claim and no question")
    asked = {name: questions[name] for name in names if name in questions}
    return {name: known[name] for name in names or known if name not in questions}, asked


def _check(names: Iterable[str], known: Collection[str], scale: Scale, what: str) -> None:
    for name in names:
        if name not in known:
            others = [other for other in SCALES if name in all_questions(other)]
            hint = f"; --scale {others[0]} has it" if others else ""
            raise ValueError(
                f"the scale {scale} has no {what} {name!r}, {one_of(name, known)}{hint}"
            )
