"""Evaluation of a run: scores, kept in its folder, and their difference to those of another run.

A finished run is evaluated again on any split, on other data, with ablations, and against another
run on the same items.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headwise.analysis.results import TEST, RunResult
from headwise.analysis.statistics import Estimate, Scores, estimate_difference
from headwise.data.settings import SPLITS
from headwise.files import write_bytes, write_text
from headwise.messages import expected_one_of, shown
from headwise.models.inspect import find_systems
from headwise.models.modeling import HeadwiseModel
from headwise.models.plan import system_class
from headwise.pretrained.ablate import ablated
from headwise.recipes.recipe import Evaluation, Recipe, task_class
from headwise.runs.folder import read_inputs, read_model, read_recipe, readable
from headwise.runs.names import MODEL
from headwise.tasks.scores import Outcome, Score
from headwise.tasks.task import Task
from headwise.training.console import bars, say, say_begin
from headwise.training.loss import undisturbed_evaluation


def evaluate(
    model: HeadwiseModel, task: Task, split: str, settings: Evaluation, console: Console, label: str
) -> Outcome:
    """Evaluates a model on a split of the data, with the ablations of the settings."""
    say_begin(console, f"{label}: evaluation on {split} begins")
    with (
        applied_ablations(model, settings, console, label),
        undisturbed_evaluation(model),
        bars(console, transient=True) as progress,
    ):

        def track(batches: Sequence[Any]) -> Iterable[Any]:
            bar = progress.add_task(label, total=len(batches), figures="batches evaluated")
            return progress.track(batches, task_id=bar)

        outcome = task.evaluate(model, split, settings, track)
    return outcome.model_copy(update={"content_hash": task.content_hash(split)})


@contextmanager
def applied_ablations(
    model: HeadwiseModel, settings: Evaluation, console: Console, label: str
) -> Iterator[None]:
    """While this context is open, the model computes with the ablations of the settings.

    Ablations of systems that the model lacks are told on the console, and change nothing.
    """
    classes = {type(system) for system in find_systems(model).values()}
    ablations = {n: value for n, value in settings.ablation.items() if system_class(n) in classes}
    for name in settings.ablation.keys() - ablations.keys():
        text = f"the ablation of {name} changes nothing: {label} has no such system"
        say(console, text, style="yellow")
    with ablated(model, ablations):
        yield


# --- in the folder of a run ---------------------------------------------------------------------


def with_scores(
    result: RunResult, folder: Path, recipe: Recipe, task: Task, console: Console, *, is_new: bool
) -> RunResult:
    """Returns the result of a run with its scores on the test split and the further test sets.

    Unless the model is new, it is evaluated only on the splits whose items are new.
    """
    scores: dict[str, list[Score]] = {}
    model = None
    for split in (TEST, *recipe.data.tests):
        has_outcome = _outcome_file(folder, split).is_file() and not is_new
        outcome = read_outcome(folder, split) if has_outcome else None
        if outcome is None or outcome.content_hash != task.content_hash(split):
            model = model or read_model(folder)
            label = folder.resolve().name
            outcome = evaluate(model, task, split, recipe.evaluation, console, label)
            _write_outcome(outcome, folder, split)
        scores[split] = [score.model_copy(update={"rows": []}) for score in outcome.scores]
    update = {"scores": scores.pop(TEST), "tests": scores}
    hashes = {split: task.content_hash(split) for split in scores}
    return result.model_copy(update={**update, "test_hashes": hashes})


def _write_outcome(outcome: Outcome, folder: Path, split: str) -> None:
    """Writes the outcome of an evaluation, and its outputs and picture as files of their own."""
    path = _outcome_file(folder, split)
    suffix = path.stem.removeprefix("outcome")
    if outcome.outputs:
        write_text(folder / f"outputs{suffix}.txt", "\n".join(outcome.outputs) + "\n")
    if outcome.picture is not None:
        write_bytes(folder / f"picture{suffix}.png", base64.b64decode(outcome.picture))
    write_text(path, outcome.model_dump_json(indent=1))


def read_outcome(folder: Path, split: str = TEST) -> Outcome:
    """Returns the outcome of a run on the test split, or on a further test set."""
    with readable(path := _outcome_file(folder, split)):
        return Outcome.model_validate_json(path.read_bytes())


def _outcome_file(folder: Path, split: str) -> Path:
    return folder / ("outcome.json" if split == TEST else f"outcome-{split}.json")


# --- of a finished run --------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishedRun:
    """A finished run and one split of its data; see `open_run`."""

    folder: Path
    split: str
    recipe: Recipe
    task: Task

    def read_model(self) -> HeadwiseModel:
        """Returns the model of the run; raises `ValueError` if it was made for other data."""
        model = read_model(self.folder)
        sizes, arguments = self.task.sizes(self.recipe, self.task), self.recipe.model_arguments
        config = type(model.config)(**{key: arguments.get(key, sizes[key]) for key in sizes})
        for key in sizes.keys() - {"max_length"}:  # it reads longer and shorter texts too
            name = "id2label" if key == "classes" else key
            needed, trained = getattr(config, name), getattr(model.config, name)
            if needed != trained:
                raise ValueError(
                    f"the data need a model whose {key} is {shown(needed)}, but that of "
                    f"{self.folder} is {shown(trained)}; give the data that the run was trained "
                    f"on, without changes on which the model depends"
                )
        return model

    def evaluate(self, console: Console, ablations: Mapping[str, Any]) -> Outcome:
        """Evaluates the run under the ablations of its recipe and under these."""
        settings = self.recipe.evaluation
        settings = settings.model_copy(update={"ablation": {**settings.ablation, **ablations}})
        label = self.folder.resolve().name
        return evaluate(self.read_model(), self.task, self.split, settings, console, label)


def open_run(
    folder: Path, split: str, console: Console, changes: Sequence[str] = ()
) -> FinishedRun:
    """Reads the recipe and the data of a finished run.

    Args:
        folder: of the run.
        split: `train`, `validation`, `test`, or the name of a further test set.
        console: for notes.
        changes: to the recipe, as `--set` takes them.
    """
    recipe = read_recipe(folder, changes)
    splits = [*SPLITS, *recipe.data.tests]
    if split not in splits:
        raise ValueError(f"{folder} has no split {split!r}, {expected_one_of(split, splits)}")
    return FinishedRun(folder, split, recipe, read_task(folder, recipe, console))


def read_task(folder: Path, recipe: Recipe, console: Console) -> Task:
    """Reads the data of a finished run, and tells if they are not those it was trained on."""
    task = task_class(recipe.task)(recipe, folder / MODEL)
    if read_inputs(folder)[:1] not in ([], [task.content_hash()]):
        name = folder.resolve().name
        say(console, f"{name} was trained on other data than these", style="yellow")
    return task


def outcome_difference(outcome: Outcome, other: Outcome) -> Estimate:
    """Returns the difference of the first score of a run to that of another, over the items.

    Its interval and its p say whether these two runs differ. One run each cannot say how much of
    the difference is the chance of training; `headwise compare` with several seeds can.
    """
    first, second = outcome.scores[0], other.scores[0]
    if (first.name, first.note) != (second.name, second.note):
        raise ValueError(
            f"the runs have {first.name} ({first.note}) and {second.name} ({second.note}), "
            f"expected scores that are computed alike; give both the same settings with "
            f"--set evaluation.KEY=VALUE"
        )
    return estimate_difference(Scores.from_runs([first]), Scores.from_runs([second]))


def check_same_items(run: FinishedRun, other: FinishedRun) -> None:
    """Raises `ValueError` unless two runs are scored on the same items."""
    if run.task.content_hash(run.split) != other.task.content_hash(other.split):
        facts = " and ".join(str(each.task.facts[each.split]) for each in (run, other))
        raise ValueError(
            f"{run.folder} and {other.folder} are not scored on the same items, expected runs of "
            f"the same task with equal data; their split {run.split} has {facts}"
        )
