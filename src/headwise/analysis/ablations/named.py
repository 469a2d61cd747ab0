"""Ablations as the command line gives them."""

from collections.abc import Sequence
from typing import Any

from headwise.models.inspect import check_ablations
from headwise.yaml import read_yaml


def parse_ablations(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Reads ablations as the command line gives them: `SYSTEM=NAME[,OPTION=VALUE...]` each.

    Values are YAML; a list holds its commas in brackets.

    >>> parse_ablations(["mae=without-expert,expert=[0, 2]"])
    {'mae': {'name': 'without-expert', 'expert': [0, 2]}}
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        system, equals, rest = (part.strip() for part in text.partition("="))
        name, _, options = (part.strip() for part in rest.partition(","))
        if not (equals and system and name):
            raise ValueError(
                f"ablation is {text!r}, expected SYSTEM=NAME, or with an option "
                f"SYSTEM=NAME,OPTION=VALUE"
            )
        if system in found:
            raise ValueError(f"ablation is {text!r}, but {system} has one already")
        asked: dict[str, Any] = {"name": name}
        if options:
            option, equals, value = (part.strip() for part in options.partition("="))
            if not (equals and option):
                raise ValueError(f"ablation is {text!r}, expected its option as OPTION=VALUE")
            try:
                asked[option] = read_yaml(value)
            except ValueError as error:
                raise ValueError(f"ablation is {text!r}: {error}") from None
        found[system] = asked
    check_ablations(found)
    return found
