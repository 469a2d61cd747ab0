"""What commands leave in the folders of runs; no other file of the tests of runs knows the layout.

Figures stand in result.json and outcome.json, and comparison.json says what is compared.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from click.testing import Result
from safetensors.torch import load_file
from support import tiny_tasks
from support.tiny_tasks import read_json
from torch import Tensor

from headwise.report.comparison import read_comparison

# What a command needs to import the classes that a recipe names.
OWN_CODE = ("--import", "trouble_maker")
# The files of a run, and the commands that cannot do without.
READ_BY = {
    "result.json": ["train"],
    "recipe.yaml": ["train", "evaluate", "predict"],
    "model/model.safetensors": ["evaluate", "predict"],
    "model/config.json": ["evaluate", "predict"],
    "model/tokenizer.json": ["evaluate", "predict"],
}


def headwise(*arguments: object, status: int | None = 0) -> Result:
    """Does a command in this process, which has to end with a status, and with no traceback."""
    done = tiny_tasks.run(*arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert status is None or done.exit_code == status, done.output
    return done


def compare(recipe: Path, folder: Path, systems: str, *options: str, status: int | None = 0) -> str:
    """Compares systems; returns what the command said."""
    given = ("--systems", systems, "--output", folder, *OWN_CODE, *options)
    return headwise("compare", recipe, *given, status=status).output


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of each file by its path in the folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def recipe_of(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))


def result(run: Path) -> dict[str, Any]:
    """What a finished run found, without what the clock measured."""
    found = json.loads((run / "result.json").read_text(encoding="utf-8"))
    for record in found["history"]:
        record.pop("seconds", None)
    kept = ("seed", "parameters", "steps", "validation_loss", "history", "scores")
    return {key: found[key] for key in kept} | {"rows": rows(run)}


def score(run: Path) -> float:
    """The first score of a finished run."""
    return result(run)["scores"][0]["value"]


def rows(run: Path) -> list[list[float]]:
    """The numbers of each test item from which the first score is computed."""
    found = json.loads((run / "outcome.json").read_text(encoding="utf-8"))
    return found["scores"][0]["rows"]


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model" / "model.safetensors")


def has_checkpoint(run: Path) -> bool:
    return any(run.glob("checkpoint-*"))


def runs(folder: Path) -> dict[str, Path]:
    """The finished runs of a comparison: their names, as `moa-seed1`, to their folders."""
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/result.json"))}


def comparison(folder: Path) -> dict[str, Any]:
    """What is compared, by the names of `headwise.analysis.results.ComparisonRecord`."""
    return read_json((folder / "comparison.json").read_text(encoding="utf-8"))


def missing(folder: Path) -> list[str]:
    """The runs of a comparison that are not finished."""
    return [name for name in comparison(folder)["runs"] if name not in runs(folder)]


def found(folder: Path, system: str, test: str = "test") -> dict[str, Any]:
    """The first score of a system, with its mean and the difference to the baseline."""
    table = read_comparison(folder).scores
    return table[(table.system == system) & (table.test == test)].iloc[0].to_dict()


class Trial(NamedTuple):
    """One combination of tuned values of a system."""

    values: dict[str, Any]
    loss: float
    is_chosen: bool


def trials(folder: Path, system: str) -> list[Trial]:
    """What a comparison tried for a system, in order."""
    tuning = comparison(folder)["tuning"][system]
    return [
        Trial(each["values"], float(each["validation_loss"]), number == tuning["chosen"])
        for number, each in enumerate(tuning["trials"])
    ]


def set_loss(folder: Path, system: str, value: str, loss: float) -> None:
    """Gives the finished trial with a value another validation loss."""
    (path,) = (folder / "trials" / system).glob(f"*={value}/result.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "validation_loss": loss}))
