"""Ablations by name: as the command line gives them, and what each does, in a sentence."""

from collections.abc import Sequence
from typing import Any

from headwise.heads.ablation import HEADS, option_of
from headwise.models.plan import system_class
from headwise.ops.checks import did_you_mean
from headwise.yaml import read_yaml

_MEANINGS = {
    "uniform": "All units that count have equal weights.",
    "random": "All decisions of a layer are one that is drawn.",
    "largest": "The unit of largest weight alone is in force.",
    "without-largest": "The unit of largest weight is left out.",
    "top-k": "The units of largest weight alone are in force.",
}


def meaning_of(name: str) -> str:
    """What an ablation does.

    >>> meaning_of("only-head")
    'One head alone is left.'
    """
    if name in _MEANINGS:
        return _MEANINGS[name]
    unit = option_of(name)
    if name.startswith("only-"):
        return f"One {unit} alone is left."
    if name in HEADS:
        return "One head adds nothing."
    return f"One {unit} is left out; the others have its weight."


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
        _check_known(system, name, asked)
        found[system] = asked
    return found


def _check_known(system: str, name: str, asked: dict[str, Any]) -> None:
    """Raises `ValueError` for what no model could have; whether it fits one, its sizes say."""
    edits = system_class(system).edits
    if name not in edits:
        raise ValueError(
            f"ablation of {system} is {name!r}, expected one of {', '.join(edits) or 'none'}"
            f"{did_you_mean(name, edits)}"
        )
    option = option_of(name)
    for key in asked:
        if key not in ("name", option):
            raise ValueError(
                f"ablation {name!r} of {system} has the option {key!r}, expected {option or 'none'}"
            )
    if option not in (None, "seed") and option not in asked:
        raise ValueError(
            f"ablation {name!r} of {system} lacks the option {option!r}: give it a number, as in "
            f"{system}={name},{option}=1"
        )
