"""The runs by which claims are tested: an ordinary recipe for each experiment at each scale.

Claims that name the same experiment share its runs. A recipe names no folder of a machine: `{data}`
in it stands for the folder with the data, and `{runs}` for that in which runs are trained. What
tells a recipe from others is its hash without these.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, Field

from headwise.claims.catalogue import declared
from headwise.claims.catalogue.declared import STRICT, Scale
from headwise.plain_yaml import read_yaml
from headwise.recipe import RecipeFile
from headwise.recipe.file import Change, split_path
from headwise.recipe.settings import Recipe
from headwise.recipe.shipped import shipped_recipes
from headwise.runs.grid import Grid, parse_grid
from headwise.runs.preparing import with_seed

DATA, RUNS = "{data}", "{runs}"


class Experiment(BaseModel):
    """Runs of the systems of one recipe, all under one budget."""

    model_config = STRICT

    recipe: str = Field(description="A file of `recipes/` here, or the name of a shipped recipe.")
    changes: tuple[str, ...] = Field((), description="Changes to it, as `--set` takes them.")
    describes: str | None = Field(
        None, description="What it is, where the changes leave little of the recipe's description."
    )
    tune: tuple[str, ...] = Field(
        (), description="What every system chooses from, as `--tune` takes it."
    )
    tune_steps: int | None = Field(None, description="How many steps each try has.")
    tune_equal: float = Field(
        0.0,
        ge=0,
        description="How far above the lowest a try's validation loss may be to count as equal; of "
        "equal tries the first is chosen.",
    )
    tune_on: str | None = Field(
        None, description="The data set on which systems choose, if there are several."
    )
    systems: tuple[str, ...] = Field(
        (), description="Systems of the recipe that it has, if not all of them."
    )
    needs: dict[str, tuple[str, ...]] = Field(
        {}, description="Experiments and systems whose first seeds have to be there before."
    )


class Places(NamedTuple):
    """Folders of this machine, which recipes do not name.

    Attributes:
        data: the folder with the data.
        runs: where runs are trained.
        evidence: where results are kept.
    """

    data: Path
    runs: Path
    evidence: Path

    def of(self, scale: Scale, experiment: str) -> "Places":
        """Returns the folders of one experiment."""
        return Places(self.data, self.runs / scale / experiment, self.evidence / scale / experiment)


def experiments(scale: Scale) -> dict[str, Experiment]:
    """Returns the experiments of a scale by their names; at `paper`, all shipped recipes too."""
    found = _declared((declared.CATALOGUE / "scales.yaml").read_text(encoding="utf-8"), scale)
    if scale != "paper":
        return found
    return {name: Experiment(recipe=name) for name in shipped_recipes()} | found


@cache
def _declared(text: str, scale: Scale) -> dict[str, Experiment]:
    of_scale = read_yaml(text)[scale] or {}
    return {name: Experiment.model_validate(values) for name, values in of_scale.items()}


def find_experiment(scale: Scale, name: str) -> Experiment:
    """Returns an experiment of a scale.

    Raises:
        ValueError: the scale has none of this name.
    """
    known = experiments(scale)
    if name not in known:
        raise ValueError(
            f"the scale {scale} has no experiment {name!r}, which a claim or a question names"
        )
    return known[name]


def read_recipe(experiment: Experiment, places: Places | None) -> RecipeFile:
    """Returns the recipe of an experiment.

    Args:
        experiment: the experiment.
        places: the folders of this machine; None to leave their names as they stand.

    Raises:
        FileNotFoundError: the recipe reads data of a folder that is not there.
    """
    own = declared.CATALOGUE / "recipes" / f"{experiment.recipe}.yaml"
    texts = [
        own.read_text(encoding="utf-8") if own.is_file() else _shipped(experiment.recipe),
        *experiment.changes,
    ]
    if places is not None:
        if not places.data.is_dir() and any(DATA in text for text in texts):
            raise FileNotFoundError(
                f"the folder with the data is {str(places.data)!r}, which is not there: name yours "
                f"by --data DIR or the variable HEADWISE_DATA; docs/claims.md says what lies in it"
            )
        names = {DATA: str(places.data), RUNS: str(places.runs.parent)}
        for name, folder in names.items():
            texts = [text.replace(name, folder) for text in texts]
    return _recipe_file(experiment.recipe, experiment.systems, *texts)


@cache
def _recipe_file(name: str, systems: tuple[str, ...], text: str, *changes: str) -> RecipeFile:
    """Checks all systems of a recipe, which takes a while: once for all claims that name it."""
    parsed: list[Change] = []
    for change in changes:
        key, _, value = change.partition("=")
        parsed.append((split_path(key), read_yaml(value)))
    raw = read_yaml(text)
    if systems:
        raw["systems"] = {system: raw["systems"][system] for system in systems}
    return RecipeFile(name, raw, parsed)


def _shipped(name: str) -> str:
    shipped = shipped_recipes()
    if name not in shipped:
        raise ValueError(f"an experiment names the recipe {name!r}, which does not exist")
    return shipped[name]


def grid_of(experiment: Experiment) -> Grid | None:
    """Returns what the systems of an experiment choose from; None without tuning."""
    return parse_grid(experiment.tune, experiment.tune_steps, experiment.tune_equal or None)


def chosen_changes(values: Mapping[str, Any]) -> list[Change]:
    """Returns tuned values as changes to a recipe."""
    return [(split_path(key), value) for key, value in values.items()]


def recipe_hash(recipe: Recipe) -> str:
    """Returns a hash of a recipe, whatever its seed, its loggers and its description.

    Args:
        recipe: of one system, with the names of folders left as `read_recipe` leaves them.
    """
    return _hash(with_seed(recipe, 0).model_dump_json(by_alias=True))


@cache
def _hash(values: str) -> str:
    """Returns the hash of a recipe that stands there as JSON; once, since YAML takes its time."""
    plain = json.loads(values, object_hook=_without_unset)
    plain.pop("description", None)
    for key in ("report_to", "snapshots", "loader_workers"):
        plain["training"].pop(key)
    return hashlib.sha256(yaml.safe_dump(plain, sort_keys=True).encode()).hexdigest()[:16]


def _without_unset(values: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what is not set and was no setting when runs were kept, which lack the key."""
    return {
        key: value
        for key, value in values.items()
        if (key, value) not in (("max_bytes", None), ("warmup_share", None))
    }
