"""What `--tune` asks for: values of keys, each combination of which is a try for every system."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from headwise.messages import shown
from headwise.plain_yaml import read_yaml
from headwise.recipe import RecipeError, RecipeFile
from headwise.recipe.file import Change, split_path
from headwise.recipe.systems import with_rule_names

KeyPath = tuple[str, ...]  # of a key: ("training", "learning_rate")

# The seed of every try. A seed that runs of the comparison have too would favour what was chosen
# for its chance.
TUNING_SEED = 1_000_000

_EXAMPLE = "training.learning_rate=1e-3,3e-3"
_MATCHED = (("model", "embed_dim"), ("model", "ffn_dim"))
_FIXED = {
    "seed": "a seed is no setting to choose; --seeds trains every system with several",
    "max_steps": "a comparison gives all systems the same number of steps; --tune-steps sets that "
    "of the tries",
}
_FIXED["epochs"] = _FIXED["max_steps"]


class Grid(NamedTuple):
    """Values to choose from.

    Attributes:
        values: path of a key to its values, as YAML reads them.
        steps: how many steps a try takes; None for as many as a run.
        equal_within: tries whose validation loss is no further than this above the lowest count as
            equal; of equal ones the first is chosen.
    """

    values: dict[KeyPath, list[Any]]
    steps: int | None = None
    equal_within: float = 0.0

    def combinations(self) -> list[list[Change]]:
        """Returns every combination of the values, each as a list of changes to a recipe.

        >>> Grid({("model", "dropout"): [0.1, 0.2], ("model", "norm"): ["pre"]}).combinations()[1]
        [(('model', 'dropout'), 0.2), (('model', 'norm'), 'pre')]
        """
        return [
            list(zip(self.values, chosen, strict=True)) for chosen in product(*self.values.values())
        ]


def parse_grid(
    options: Sequence[str], steps: int | None = None, equal_within: float | None = None
) -> Grid | None:
    """Returns what the options of the command line ask for; None without any.

    Args:
        options: arguments of `--tune`, each `key.key=value,value`. The values are YAML; one that
            is a list stands in brackets.
        steps: `--tune-steps`.
        equal_within: `--tune-equal`.

    Raises:
        ValueError: an option is not of this form, names no key of `model` or `training`, has fewer
            than two values, or has a key in common with another; or `equal_within` is below 0 or
            not finite.

    >>> parse_grid(["training.adam_betas=[0.9, 0.98],[0.9, 0.999]"]).values
    {('training', 'adam_betas'): [[0.9, 0.98], [0.9, 0.999]]}
    """
    if not options:
        for name, given in (("--tune-steps", steps), ("--tune-equal", equal_within)):
            if given is not None:
                raise ValueError(f"{name} is {given}, but nothing is tuned: give --tune {_EXAMPLE}")
        return None
    if equal_within is not None and not 0 <= equal_within < math.inf:
        raise ValueError(
            f"--tune-equal is {equal_within}, expected a difference of validation losses from 0 "
            f"on, such as 0.03"
        )
    values: dict[KeyPath, list[Any]] = {}
    for option in options:
        path, of_path = _parse(option)
        for other in values:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                raise ValueError(
                    f"--tune names {dotted(other)} and {dotted(path)}, expected each key once, "
                    f"with all of its values: {_EXAMPLE}"
                )
        values[path] = of_path
    return Grid(values, steps, equal_within or 0.0)


def _parse(option: str) -> tuple[KeyPath, list[Any]]:
    key, equals, text = option.partition("=")
    path = split_path(key)
    if not equals or not all(path):
        raise ValueError(f"--tune is {option!r}, expected KEY=VALUE,VALUE such as {_EXAMPLE}")
    if path[0] not in ("model", "training") or len(path) < 2:
        raise ValueError(
            f"--tune names {key.strip()!r}, expected a key of `model` or `training`, such as "
            f"{_EXAMPLE}: all systems are compared on the same data, by the same evaluation"
        )
    if path[0] == "training" and path[1] in _FIXED:
        raise ValueError(f"--tune names {dotted(path)}: {_FIXED[path[1]]}")
    try:
        values = read_yaml(f"[{text}]")
    except ValueError as error:
        raise ValueError(
            f"--tune is {shown(option)}, expected YAML values, separated by commas: {error}"
        ) from None
    if len(values) < 2:
        raise ValueError(
            f"--tune is {option!r}, expected at least two values, separated by commas; "
            f"--set {dotted(path)}={text or 'VALUE'} gives every system a single one"
        )
    return _with_rule_name(path), values


def _with_rule_name(path: KeyPath) -> KeyPath:
    """The path with the name of a rule of training in place of a class that has the rule."""
    if path[0] != "training" or len(path) < 3:
        return path
    named = with_rule_names({"training": {path[1]: {}}})
    (rule,) = named["training"]
    return ("training", rule, *path[2:])


def check_grid(
    grid: Grid, file: RecipeFile, systems: Sequence[str], seeds: Sequence[int], *, match: bool
) -> None:
    """Checks that tuning would undo nothing that the user has said.

    Args:
        grid: the tuned values.
        file: the recipe.
        systems, seeds: what is compared.
        match: whether all systems are made as large as the first.

    Raises:
        ValueError: a tuned key is set on the command line, by one of the systems, or by the match
            of sizes; or a run has the seed of the tries.
    """
    if TUNING_SEED in seeds:
        raise ValueError(
            f"--seeds has {TUNING_SEED}, the seed of the tries of --tune: use another, so that no "
            f"system is favoured by the chance that its values were chosen for"
        )
    for path in grid.values:
        if match and path in _MATCHED:
            raise ValueError(
                f"--match parameters sets {dotted(path)} of each system: leave out --match, or "
                f"tune another key"
            )
        if file.is_set(path):
            raise ValueError(
                f"--set and --tune both give {dotted(path)} a value: leave it out of one of them"
            )
        fixing = [name for name in systems if file.is_set(path, name)]
        if fixing:
            raise RecipeError(
                f"--tune names {dotted(path)}, but the recipe sets it for {', '.join(fixing)}, "
                f"which tuning would undo: tune another key, take this one out of "
                f"systems.{fixing[0]}.{path[0]}, or leave the system out with --systems"
            )


def dotted(path: KeyPath) -> str:
    """Returns the path as a user writes it: `training.learning_rate`."""
    return ".".join(path)
