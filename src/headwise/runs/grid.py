"""What `--tune` asks for: values of keys, each combination of which is a try for every system."""

import glob
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

from headwise.messages import shown
from headwise.models.inspect import systems
from headwise.models.plan import rule_name
from headwise.recipes.document import Change, RecipeError, split_path
from headwise.recipes.recipe import SEED, Recipe, RecipeFile, to_yaml
from headwise.runs.preparing import empty_model
from headwise.training.settings import TrainingSettings
from headwise.yaml import read_yaml

KeyPath = tuple[str, ...]  # of a key: ("training", "learning_rate")

# The seed of every try. A seed that runs of the comparison have too would favour what was chosen
# for its chance.
TUNING_SEED = 1_000_000

_EXAMPLE = "training.learning_rate=1e-3,3e-3"
_LONGEST_NAME = 120  # of a folder
_WIDTHS: list[KeyPath] = [("model", "embed_dim"), ("model", "ffn_dim")]
_MATCHED: dict[str | None, list[KeyPath]] = {  # the keys that --match sets
    None: [],
    "parameters": _WIDTHS,
    "parameters-and-heads": [*_WIDTHS, ("model", "num_heads")],
}
_FIXED = {
    "seed": "a seed is no setting to choose; --seeds trains every system with several",
    "max_steps": "a comparison gives all systems the same number of steps; --tune-steps sets that "
    "of the tries",
}
_FIXED["epochs"] = _FIXED["max_steps"]


class Grid(NamedTuple):
    """Values to choose from."""

    values: dict[KeyPath, list[Any]]  # path of a key to its values, as YAML reads them
    steps: int | None = None  # how many steps a try takes; None for as many as a run
    # Tries whose validation loss is no further than this above the lowest count as equal; of equal
    # ones the first is chosen.
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
    return path, values


def check_grid(
    grid: Grid, file: RecipeFile, systems: Sequence[str], seeds: Sequence[int], match: str | None
) -> None:
    """Checks that tuning would undo nothing that the user has said."""
    if TUNING_SEED in seeds:
        raise ValueError(
            f"--seeds has {TUNING_SEED}, the seed of the tries of --tune: use another, so that no "
            f"system is favoured by the chance that its values were chosen for"
        )
    for path in grid.values:
        if path in _MATCHED[match]:
            raise ValueError(
                f"--match {match} sets {dotted(path)} of each system: leave out --match, or tune "
                f"another key"
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


class Candidate(NamedTuple):
    """One combination of tuned values for one system."""

    # Path of a key to its value, as the recipe reads it, without the settings of systems that the
    # model does not have.
    values: dict[str, Any]
    recipe: Recipe  # of the runs, if they are to have these values
    training: TrainingSettings  # how the try is trained: with its own seed and number of steps

    def folder_name(self, steps: int | None) -> str:
        """Returns a name for the folder of the try."""
        parts = [f"{key}={_plain(value)}" for key, value in self.values.items()]
        parts += [f"steps={steps}"] if steps is not None else []
        wanted = ",".join(parts)
        name = re.sub(r"[^\w.,=+-]+", "-", wanted)
        if name == wanted and len(name) <= _LONGEST_NAME:
            return name
        return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


def candidates(file: RecipeFile, system: str, dataset: str | None, grid: Grid) -> list[Candidate]:
    """Returns a candidate for every combination that differs for a system; no data are read.

    Combinations differ in nothing, and are one try, that set the rule of training of a system that
    the model does not have.
    """
    of_tries: list[Change] = [(("training", "seed"), TUNING_SEED)]
    if grid.steps is not None:
        of_tries.append((("training", "max_steps"), grid.steps))
    found: dict[str, Candidate] = {}  # by the recipe
    combined = []
    for combination in grid.combinations():
        try:
            asked = file.system(system, dataset, combination)
            idle = _idle_paths(asked, grid)
            changes = [change for change in combination if change[0] not in idle]
            recipe = file.system(system, dataset, changes)
            of_try = file.system(system, dataset, [*changes, *of_tries])
        except RecipeError as error:
            tuned = {dotted(path): value for path, value in combination}
            raise RecipeError(f"--tune {assignments(tuned)}: {error}") from None
        _check_warmup(recipe.training, grid.steps)
        _check_start(of_try)
        settings = asked.model_dump(mode="json", by_alias=True)
        values = {dotted(path): reduce(getitem, path, settings) for path in grid.values}
        if values in combined:
            raise ValueError(f"--tune names {assignments(values)} twice, expected different values")
        combined.append(values)
        own = {(key := dotted(path)): values[key] for path, _ in changes}
        found.setdefault(to_yaml(recipe), Candidate(own, recipe, of_try.training))
    return list(found.values())


def _idle_paths(recipe: Recipe, grid: Grid) -> set[KeyPath]:
    """The tuned keys of rules of training that no system of the recipe's model has."""
    named = {path for path in grid.values if path[:2] == ("training", "rules") and len(path) > 2}
    if not named:
        return set()
    kinds = {type(system) for system in systems(empty_model(recipe)).values()}
    held = {rule_name(kind) for kind in kinds if kind.rule is not None}
    return {path for path in named if path[2] not in held}


def _check_warmup(training: TrainingSettings, steps: int | None) -> None:
    """Raises `ValueError` if shorter tries never reach the learning rate that runs do reach."""
    if steps is None or training.warmup(steps) < steps:
        return
    rises = training.warmup(steps)
    if training.max_steps is None or training.max_steps > rises:
        raise ValueError(
            f"--tune-steps is {steps}, expected more than the {rises} steps of "
            f"training.warmup_steps: the tries would end while the learning rate still rises"
        )


def _check_start(of_try: Recipe) -> None:
    """Raises `ValueError` if the seeds of runs have a run to start from, that of tries has none.

    Where no seed has one they may be gone, and what is finished does without.
    """
    named, start = of_try.pretrained, of_try.pretrained_folder()
    if named is None or start is None or start.is_dir():
        return
    pattern = Path(glob.escape(named).replace(SEED, "*"))
    if any(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))):
        raise ValueError(
            f"model.pretrained is {named}, and there is no {start}, from which the tries of --tune "
            f"start: train it with seed {TUNING_SEED}, or name one run without {SEED}"
        )


def assignments(values: Mapping[str, Any]) -> str:
    """Returns values as a user gives them: `model.dropout=0.1, model.norm=pre`."""
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _plain(value: Any) -> str:
    return str(value).replace(" ", "").strip("[]")
