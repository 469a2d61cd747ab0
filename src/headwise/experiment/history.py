"""The log of training as a result keeps it: curves, what rules recorded, and snapshots."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.analysis.behaviour.snapshots import DecisionCourse
from headwise.analysis.behaviour.where import Where
from headwise.analysis.results import Course
from headwise.models.base import HeadwiseModel
from headwise.models.plan import system_name
from headwise.models.sites import attention_sites


def curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Returns the losses and what was measured, by step."""
    kept = ("step", "loss", "eval_loss", "seconds")
    return [
        {key: record[key] for key in kept if key in record} | record.get("measured", {})
        for record in history
        if "loss" in record or "eval_loss" in record
    ]


def courses_of(model: HeadwiseModel, history: Sequence[Mapping[str, Any]]) -> list[Course]:
    """Returns what the rules of training recorded of each system; empty without records."""
    records = [(record["step"], found) for record in history if (found := _recorded(record))]
    courses = []
    for place in attention_sites(model):
        of_place = [(step, found[place.path]) for step, found in records if place.path in found]
        if of_place:
            courses.append(
                Course(
                    site=place.site,
                    layer=place.layer,
                    system=system_name(type(place.module)),
                    whole_layer=place.module.replaces == "layer",
                    steps=[step for step, _ in of_place],
                    values={name: [made[name] for _, made in of_place] for name in of_place[0][1]},
                )
            )
    return courses


def decision_courses(
    model: HeadwiseModel, history: Sequence[Mapping[str, Any]]
) -> list[DecisionCourse]:
    """Returns how the decisions of each system moved, from the snapshots; empty without any."""
    taken = [(record["step"], record["snapshot"]) for record in history if "snapshot" in record]
    courses = []
    for place in attention_sites(model):
        of_place = [(step, found[place.path]) for step, found in taken if place.path in found]
        if of_place:
            _, last = of_place[-1]
            courses.append(
                DecisionCourse(
                    **Where.of(place).model_dump(),
                    uniform=math.log(last["candidates"]),
                    steps=[step for step, _ in of_place],
                    entropy=[found["entropy"] for _, found in of_place],
                    lowest_entropy=[found["lowest_entropy"] for _, found in of_place],
                    shares=[found["shares"] for _, found in of_place],
                    weights=[found["weights"] for _, found in of_place],
                    explained={
                        label: [found["explained"].get(label) for _, found in of_place]
                        for label in last["explained"]
                    },
                )
            )
    return courses


def _recorded(record: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """What rules recorded at a step, by path."""
    found: dict[str, dict[str, dict[str, list[float]]]] = record.get("recorded", {})
    return {path: made for of_rule in found.values() for path, made in of_rule.items()}
