"""Results that an older headwise has written, in the form of today."""

from collections.abc import Mapping
from typing import Any

from headwise.models.config import TransformerConfig
from headwise.models.plan import rules_by_name, system_class


def without_former_keys(result: Mapping[str, Any], config: TransformerConfig) -> dict[str, Any]:
    """A run's result in which records name the system that they are of.

    Older results said instead what kind of decision a record is of, and had what rules of training
    record under a key of each rule's own.

    Args:
        result: a `RunResult` as JSON.
        config: the configuration of the run's model, which tells where each system stands.
    """
    changed = dict(result)
    specs = config.systems()
    names: dict[str, None] = {}

    def placed(record: Mapping[str, Any]) -> dict[str, Any]:
        name = specs[record["site"]][record["layer"]]["system"]
        names[name] = None
        kept = {key: value for key, value in record.items() if key != "kind"}
        return {**kept, "system": name, "whole_layer": system_class(name).replaces == "layer"}

    changed["attention"] = [
        record if "system" in record else placed(record) for record in result["attention"]
    ]
    courses = list(result.get("courses", []))
    for rule in rules_by_name().values():
        for course in changed.pop(rule.former_key, None) or []:
            place = {key: course[key] for key in ("site", "layer", "steps")}
            values = {key: rows for key, rows in course.items() if key not in place}
            courses.append({**placed(place), "values": values})
    changed["courses"] = courses
    if names:
        words = {name: system_class(name).words.model_dump() for name in names}
        changed["words"] = {**words, **result.get("words", {})}
    return changed
