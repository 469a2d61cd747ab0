"""Finished runs, evaluated again: on any part, on other data, and against another run.

Both runs of a comparison are scored on the same items. Its interval and its p are over the items
alone: they say whether these two runs differ. One run each cannot say how much of the difference is
the chance of training; `headwise compare` with several seeds can.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headwise.analysis.statistics.estimates import Difference
from headwise.analysis.statistics.seeds_and_items import compare_outcomes
from headwise.data.division import PARTS
from headwise.messages import did_you_mean
from headwise.models.base import HeadwiseModel
from headwise.recipes.catalogue import task_class
from headwise.recipes.settings import Recipe
from headwise.runs.outcomes import evaluate, stored_outcome
from headwise.runs.preparing import is_other_data
from headwise.runs.reading import read_model, read_recipe
from headwise.tasks.outcome import Outcome
from headwise.tasks.task import Task

OTHER = "other"  # the name under which other data become a further test set of a run
# Keys of a model's configuration that say nothing of the data.
_NOT_OF_DATA = (
    *("transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path"),
    "max_length",  # other lengths of blocks are read by the same model
)


@dataclass(frozen=True)
class Opened:
    """A run and one part of its data.

    Attributes:
        run: folder of the run.
        recipe: of the run, with the changes of the command line.
        task: its data.
        part: name of the part.
    """

    run: Path
    recipe: Recipe
    task: Task
    part: str


@dataclass(frozen=True)
class Evaluation(Opened):
    """A run and its scores on one part.

    Attributes:
        outcome: the scores, and the items from which they are computed.
    """

    outcome: Outcome


def evaluate_run(
    run: Path,
    part: str,
    console: Console,
    *,
    data: str | None = None,
    ablations: Mapping[str, Any] | None = None,
    changes: Sequence[str] = (),
    may_be_stored: bool = False,
) -> Evaluation:
    """Evaluates a finished run.

    Args:
        run: folder of the run.
        part: `train`, `validation`, `test`, or the name of a further test set.
        console: for bars and notes.
        data: other data in the place of a part, `KEY=VALUE,...`, with the keys that a further test
            set of the task has; None for none.
        ablations: name of a system to the ablation with which it is evaluated.
        changes: to the recipe, as `--set` takes them.
        may_be_stored: whether scores that the run has from the same items and settings are taken
            from its folder.

    Raises:
        FolderError: there is no finished run in the folder.
        ValueError: there is no such part, the other data cannot be read, or the changes are of
            keys that evaluation does not read.
    """
    opened = open_part(run, part, console, data=data, changes=changes)
    recipe, task, part = opened.recipe, opened.task, opened.part
    is_as_trained = not ablations and not changes and data is None
    outcome = stored_outcome(run, task, part) if may_be_stored and is_as_trained else None
    if outcome is None:
        ablation = {**recipe.evaluation.ablation, **(ablations or {})}
        settings = recipe.evaluation.model_copy(update={"ablation": ablation})
        model = model_of(opened, changes)
        outcome = evaluate(model, task, task.part(part), settings, console, run.name)
    return Evaluation(run, recipe, task, part, outcome)


def open_part(
    run: Path,
    part: str,
    console: Console,
    *,
    data: str | None = None,
    changes: Sequence[str] = (),
) -> Opened:
    """Reads the recipe of a finished run and a part of its data; see `evaluate_run`."""
    if data is None:
        recipe = read_recipe(run, changes)
    else:
        recipe, part = _with_other_data(run, data, changes), OTHER
    parts = [*PARTS, *getattr(recipe.data, "tests", {})]
    if part not in parts:
        raise ValueError(
            f"--part is {part!r}, expected one of {', '.join(parts)}, the parts of {run}"
            f"{did_you_mean(part, parts)}"
        )
    task = task_class(recipe.task).prepare(recipe, run)
    if is_other_data(task, run) or is_other_data(task, run.resolve().parent):
        console.print(f"{run.name} was trained on other data than these", style="yellow")
    return Opened(run, recipe, task, part)


def model_of(opened: Opened, changes: Sequence[str] = ()) -> HeadwiseModel:
    """The model of an opened run.

    Raises:
        FolderError: the run is not finished.
        ValueError: the changes give data for another model.
    """
    model = read_model(opened.run, type(opened.task))
    if changes:
        _check_fits(model, opened.task, opened.recipe)
    return model


def compare_runs(run: Evaluation, other: Evaluation) -> Difference | None:
    """Returns the difference of the first score of a run to that of another, over the items.

    Args:
        run, other: evaluations on the same items.

    Returns:
        The difference of `run` to `other`; None if there are fewer than ten items, or no finite
        scores.

    Raises:
        ValueError: the runs are not scored on the same items, or not in the same way.
    """
    check_same_items(run, other)
    first, second = run.outcome.scores[0], other.outcome.scores[0]
    if (first.name, first.note) != (second.name, second.note):
        raise ValueError(
            f"{run.run} has {first.name} ({first.note}) and {other.run} has {second.name} "
            f"({second.note}), expected scores that are computed alike; give both runs the same "
            f"settings with --set evaluation.KEY=VALUE"
        )
    _, differences = compare_outcomes(
        {"run": [run.outcome], "other": [other.outcome]},
        "other",
        lambda name: run.task.statistic(name, run.recipe.evaluation),
    )
    return differences["run"]


def _with_other_data(run: Path, data: str, changes: Sequence[str]) -> Recipe:
    """Returns the recipe of a run with other data as a further test set."""
    recipe = read_recipe(run)
    if "tests" not in type(recipe.data).model_fields:
        raise ValueError(
            f"--data is {data!r}, but {run} is a run of {recipe.task} on data of the kind "
            f"{recipe.data.corpus}, which takes no other data for a test"
        )
    # A comma inside a value, as in files=[a.txt, b.txt], is followed by no key.
    given = re.split(r",(?=\s*\w+\s*=)", data)
    added = [f"data.tests.{OTHER}.{each.strip()}" for each in given]
    try:
        return read_recipe(run, [*changes, *added])
    except ValueError as error:
        raise ValueError(f"--data is {data!r}: {error}") from error


def _check_fits(model: HeadwiseModel, task: Task, recipe: Recipe) -> None:
    """Raises `ValueError` if changed data are not those that a model was made for."""
    own, needed = model.config.to_dict(), task.model_config(recipe.model).to_dict()
    for key in needed:
        if key not in _NOT_OF_DATA and own.get(key) != needed[key]:
            raise ValueError(
                f"the changes give data for a model whose {key} is {needed[key]}, but that of the "
                f"run is {own.get(key)}; leave out the changes of data that the model depends on"
            )


def check_same_items(run: Opened, other: Opened) -> None:
    """Raises `ValueError` unless two runs are scored on the same items."""
    if run.recipe.task != other.recipe.task:
        raise ValueError(
            f"{run.run} is a run of {run.recipe.task} and {other.run} one of {other.recipe.task}, "
            f"expected runs of the same task"
        )
    if run.task.digest_of(run.part) != other.task.digest_of(other.part):
        label = run.part if run.part in PARTS else f"test {run.part}"
        notes = [f"{of.run}: {of.task.notes.get(label, '')}" for of in (run, other)]
        keys = ("data", *run.task.item_keys)
        raise ValueError(
            f"{run.run} and {other.run} are not scored on the same items, expected runs with equal "
            f"{', '.join(keys)}; their part {run.part}:\n  " + "\n  ".join(notes)
        )
