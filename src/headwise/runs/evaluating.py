"""What evaluation gives: computed, kept in the folder of a run, and compared with that of another.

Finished runs are evaluated again on any part, on other data, and against another run. Both runs of
a comparison are scored on the same items. Its interval and its p are over the items alone: they say
whether these two runs differ. One run each cannot say how much of the difference is the chance of
training; `headwise compare` with several seeds can.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import Tensor

from headwise.analysis.results import RunResult
from headwise.analysis.statistics.estimates import Difference
from headwise.analysis.statistics.seeds_and_items import compare_outcomes
from headwise.data.settings import PARTS
from headwise.files import write_bytes, write_text
from headwise.messages import shown
from headwise.models.inspect import ablated, evaluating, systems
from headwise.models.modeling import HeadwiseModel
from headwise.models.plan import system_class
from headwise.ops.checks import did_you_mean
from headwise.recipes.recipe import Evaluation as EvaluationSettings
from headwise.recipes.recipe import Recipe, task_class
from headwise.runs.folder import MODEL, RESULT, is_writer
from headwise.runs.locking import join
from headwise.runs.preparing import is_other_data, lines_of
from headwise.runs.reading import (
    DamagedError,
    how_to_evaluate_again,
    read_model,
    read_recipe,
    read_record,
)
from headwise.runs.running import PlannedRun
from headwise.tasks.scores import Outcome, Score
from headwise.tasks.task import Each, Task
from headwise.training.evaluating import loss_and_labels
from headwise.training.processes import divided, everywhere, own_draws
from headwise.training.progress import RunBars
from headwise.training.settings import TrainingSettings

TEST = "test"  # the name of the test part
OUTPUTS, PICTURES, OUTCOME = "outputs.txt", "pictures", "outcome.json"
OTHER = "other"  # the name under which other data become a further test set of a run

_Batch = TypeVar("_Batch")
_Found = TypeVar("_Found")


class DividedEach(Each):
    """Divides batches among the processes of a run, and shows a progress bar.

    Args:
        console: where the bar is drawn.
        label: what the bar is called.
    """

    def __init__(self, console: Console, label: str) -> None:
        self.console, self.label = console, label

    def __call__(
        self, batches: Sequence[_Batch], compute: Callable[[_Batch], _Found]
    ) -> list[_Found]:
        with RunBars(self.console, transient=True) as bars:
            bar = bars.begin(self.label, len(batches), figures="batches evaluated")
            return divided(batches, compute, lambda batch: bars.update(bar, advance=1))


def evaluate(
    model: HeadwiseModel,
    task: Task,
    part: str,
    settings: EvaluationSettings,
    console: Console,
    label: str,
) -> Outcome:
    """Evaluates a model on a part of the data and shows a progress bar.

    Several processes, which call this together, divide the batches, and each gets the outcome.
    """
    with as_evaluated(model, settings, console, label), torch.no_grad(), own_draws():
        model.eval()
        return task.evaluate(model, part, settings, DividedEach(console, label))


def loss_of_part(model: HeadwiseModel, task: Task, part: str, settings: TrainingSettings) -> float:
    """Returns the mean loss per label of a part, without label smoothing and auxiliary losses.

    Each of several processes computes it for a share of the batches.
    """

    items = task.parts[part]

    def compute(batch: list[int]) -> Tensor:
        return loss_and_labels(model, task.collate(items.__getitems__(batch))).cpu()

    with evaluating(model), torch.no_grad():
        found = divided(task.batches(part, settings.batch_tokens), compute)
    loss, labels = torch.stack(found).sum(0).tolist()
    return loss / max(1.0, labels)


def fitting(model: HeadwiseModel, ablation: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some ablations whose systems the model has."""
    held = {type(system) for system in systems(model).values()}
    return {name: asked for name, asked in ablation.items() if system_class(name) in held}


@contextmanager
def as_evaluated(
    model: HeadwiseModel, settings: EvaluationSettings, console: Console, label: str
) -> Iterator[None]:
    """While this context is open, the model computes with the ablations of the evaluation."""
    ablation = fitting(model, settings.ablation)
    for name in settings.ablation:
        if name not in ablation:
            console.print(
                f"evaluation.ablation names {name}, which changes nothing: {label} has no system "
                f"of that name",
                style="yellow",
                highlight=False,
                markup=False,
                emoji=False,
            )
    with ablated(model, ablation):
        yield


def with_tests(result: RunResult, run: PlannedRun[RunResult], console: Console) -> RunResult:
    """Returns the result of a finished run with the scores on all further test sets.

    The run is evaluated on those that it was not evaluated on before, or whose data have changed.
    """
    task, folder, settings = run.task, run.folder, run.recipe.evaluation
    scores: dict[str, list[Score]] = {}
    model: HeadwiseModel | None = None
    for name in run.recipe.data.tests:
        outcome = stored_outcome(folder, task, name)
        if outcome is None:
            model = model or read_model(folder, type(task))
            outcome = evaluate(model, task, name, settings, console, f"{run.label} {name}")
            if is_writer():
                write_outcome(outcome, folder, task, name)
        else:
            mend_outputs(outcome, run, console, name)
        scores[name] = without_rows(outcome.scores)
    if scores == result.tests:
        return result
    result = result.model_copy(update={"tests": scores})
    if is_writer():
        write_text(folder / RESULT, result.model_dump_json(indent=1))
    return result


def without_rows(scores: Sequence[Score]) -> list[Score]:
    """The scores for a result, whose rows stand in the outcome alone."""
    return [score.model_copy(update={"rows": []}) for score in scores]


def read_outcome(folder: Path, part: str = TEST) -> Outcome:
    """What the evaluation of a finished run on the test part, or a further test set, gave."""
    return read_record(Outcome, folder / _of_part(OUTCOME, part), how_to_evaluate_again(folder))


def stored_outcome(folder: Path, task: Task, part: str) -> Outcome | None:
    """What an earlier evaluation of a run gave on the items of a part.

    None if there was none, or if it is damaged, so that whoever asks evaluates the run again; also
    where this is so on one of several machines.
    """
    found = None
    if (folder / _of_part(OUTCOME, part)).is_file():
        with suppress(DamagedError):
            found = read_outcome(folder, part)
    is_known = found is not None and found.digest == task.digest(part)
    return found if everywhere(is_known) else None


def write_outcome(outcome: Outcome, folder: Path, task: Task, part: str = TEST) -> None:
    outcome = outcome.model_copy(update={"digest": task.digest(part)})
    for path, content in _outputs(outcome, folder, part):
        write_bytes(path, content)
    write_text(folder / _of_part(OUTCOME, part), outcome.model_dump_json(indent=1))


def mend_outputs(
    outcome: Outcome, run: PlannedRun[RunResult], console: Console, part: str = TEST
) -> None:
    """Writes those of a run's outputs and pictures again that are not as evaluation gave them."""
    for path, content in _outputs(outcome, run.folder, part):
        if is_writer() and not (path.is_file() and path.read_bytes() == content):
            run.warn(console, f"{path} is not as the evaluation gave it: it is written again")
            write_bytes(path, content)


def _outputs(outcome: Outcome, folder: Path, part: str) -> Iterator[tuple[Path, bytes]]:
    """What a user looks at of an outcome: files and their content."""
    if outcome.outputs:
        yield folder / _of_part(OUTPUTS, part), ("\n".join(outcome.outputs) + "\n").encode()
    for number, picture in enumerate(outcome.pictures, 1):
        name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")
        yield folder / _of_part(PICTURES, part) / f"{number:02}-{name}.png", picture.bytes


def _of_part(name: str, part: str) -> str:
    """Returns the name of a part's file: outcome.json of the test part, else outcome-NAME.json."""
    stem, dot, suffix = name.partition(".")
    return name if part == TEST else f"{stem}-{part}{dot}{suffix}"


@dataclass(frozen=True)
class Opened:
    """A run and one part of its data."""

    run: Path  # folder of the run
    recipe: Recipe  # of the run, with the changes of the command line
    task: Task  # its data
    part: str  # name of the part


@dataclass(frozen=True)
class Evaluation(Opened):
    """A run and its scores on one part."""

    outcome: Outcome  # the scores, with the rows from which they are computed


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
        data: other data in the place of a part, `KEY=VALUE,...`, with keys of `data`; None for
            none.
        ablations: name of a system to the ablation with which it is evaluated.
        changes: to the recipe, as `--set` takes them.
        may_be_stored: whether scores that the run has from the same items and settings are taken
            from its folder.

    Raises:
        FolderError: there is no finished run in the folder.
        ValueError: there is no such part, the other data cannot be read, or the changes are of
            keys that evaluation does not read.
    """
    join()
    opened = open_part(run, part, console, data=data, changes=changes)
    recipe, task, part = opened.recipe, opened.task, opened.part
    is_as_trained = not ablations and not changes and data is None
    outcome = stored_outcome(run, task, part) if may_be_stored and is_as_trained else None
    if outcome is None:
        ablation = {**recipe.evaluation.ablation, **(ablations or {})}
        settings = recipe.evaluation.model_copy(update={"ablation": ablation})
        model = model_of(opened)
        outcome = evaluate(model, task, part, settings, console, run.resolve().name)
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
    parts = [*PARTS, *recipe.data.tests]
    if part not in parts:
        raise ValueError(
            f"--part is {part!r}, expected one of {', '.join(parts)}, the parts of {run}"
            f"{did_you_mean(part, parts)}"
        )
    return Opened(run, recipe, task_of(run, recipe, console), part)


def task_of(run: Path, recipe: Recipe, console: Console) -> Task:
    """Reads the data of a finished run, and says so if it was trained on others."""
    task = task_class(recipe.task)(recipe, run / MODEL)
    if is_other_data(task, run) or is_other_data(task, run.resolve().parent):
        said = f"{run.resolve().name} was trained on other data than these"
        console.print(said, style="yellow", markup=False, emoji=False)
    return task


def model_of(opened: Opened) -> HeadwiseModel:
    """The model of an opened run.

    Raises:
        ValueError: it was made for other data than those of the opened run.
    """
    task, recipe = opened.task, opened.recipe
    model = read_model(opened.run, type(task))
    sizes = task.sizes(recipe, task)
    sizes |= {key: value for key, value in recipe.model_arguments.items() if key in sizes}
    needed = type(model.config)(**sizes)
    # Longer and shorter texts are read by the same model.
    for key in sizes.keys() - {"max_length"}:
        name = "id2label" if key == "classes" else key
        now, then = getattr(needed, name), getattr(model.config, name)
        if now != then:
            raise ValueError(
                f"the data need a model whose {key} is {shown(now)}, but that of {opened.run} is "
                f"{shown(then)}; give the data that the run was trained on, without changes on "
                f"which the model depends"
            )
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
    _, differences = compare_outcomes({"run": [run.outcome], "other": [other.outcome]}, "other")
    return differences["run"]


def _with_other_data(run: Path, data: str, changes: Sequence[str]) -> Recipe:
    """Returns the recipe of a run with other data as a further test set."""
    # A comma inside a value, as in files.test=[a.txt, b.txt], is followed by no key.
    given = re.split(r",(?=\s*[\w.]+\s*=)", data)
    added = [f"data.tests.{OTHER}.{each.strip()}" for each in given]
    try:
        return read_recipe(run, [*changes, *added])
    except ValueError as error:
        raise ValueError(f"--data is {data!r}: {error}") from error


def check_same_items(run: Opened, other: Opened) -> None:
    """Raises `ValueError` unless two runs are scored on the same items."""
    if run.recipe.task != other.recipe.task:
        raise ValueError(
            f"{run.run} is a run of {run.recipe.task} and {other.run} one of {other.recipe.task}, "
            f"expected runs of the same task"
        )
    if run.task.digest(run.part) != other.task.digest(other.part):
        facts = {str(of.run): of.task.facts[of.part] for of in (run, other)}
        raise ValueError(
            f"{run.run} and {other.run} are not scored on the same items, expected runs with equal "
            f"data; their part {run.part}:\n  " + "\n  ".join(lines_of(facts))
        )
