"""What the records of a training say: its losses, and how the systems of its model moved."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.places import Place, places_of
from headwise.analysis.decisions.snapshots import DecisionCourse
from headwise.analysis.results import Course

History = Sequence[Mapping[str, Any]]  # records with `step`, as `Progress` of the trainer has them


def curves(history: History) -> list[dict[str, float]]:
    """Returns the losses and what was measured, by step."""
    kept = ("step", "loss", "eval_loss", "seconds")
    return [
        {key: record[key] for key in kept if key in record} | record.get("measured", {})
        for record in history
        if "loss" in record or "eval_loss" in record
    ]


def courses_of(model: nn.Module, history: History) -> list[Course]:
    """Returns what the rules of training recorded of each system; empty without records."""
    by_path = [
        (step, {path: made for of_rule in found.values() for path, made in of_rule.items()})
        for step, found in ((record["step"], record.get("recorded", {})) for record in history)
    ]
    return [
        Course(
            **Where.of(place).model_dump(exclude={"path"}),
            steps=steps,
            values={name: [made[name] for made in found] for name in found[0]},
        )
        for place, steps, found in _by_site(model, by_path)
    ]


def decision_courses(model: nn.Module, history: History) -> list[DecisionCourse]:
    """Returns how the decisions of each system moved, from the snapshots; empty without any."""
    snapshots = [(record["step"], record.get("snapshot", {})) for record in history]
    measured = ("entropy", "lowest_entropy", "shares", "weights")
    return [
        DecisionCourse(
            **Where.of(place).model_dump(),
            uniform=math.log(found[-1]["candidates"]),
            steps=steps,
            **{name: [each[name] for each in found] for name in measured},
            explained={
                label: [each["explained"].get(label) for each in found]
                for label in found[-1]["explained"]
            },
        )
        for place, steps, found in _by_site(model, snapshots)
    ]


def _by_site(
    model: nn.Module, records: Sequence[tuple[int, Mapping[str, Any]]]
) -> Iterator[tuple[Place, list[int], list[Any]]]:
    """Yields each system that the records mention: its site, the steps, and what they say of it."""
    for place in places_of(model):
        of_place = [(step, found[place.path]) for step, found in records if place.path in found]
        if of_place:
            steps, found = zip(*of_place, strict=True)
            yield place, list(steps), list(found)
