"""What evaluation gives: computed, kept in the folder of a run, and compared with that of another.

A finished run is evaluated again on any part, on other data, with ablations, and against another
run on the same items. The interval and the p of such a difference are over the items alone: they
say whether these two runs differ. One run each cannot say how much of the difference is the chance
of training; `headwise compare` with several seeds can.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.analysis.statistics import Estimate, Scores, contrast
from headwise.data.load import DataError
from headwise.data.settings import PARTS
from headwise.files import write_bytes, write_text
from headwise.messages import one_of, shown
from headwise.models.inspect import ablated, systems
from headwise.models.modeling import HeadwiseModel
from headwise.models.plan import system_class
from headwise.recipes.document import RecipeError
from headwise.recipes.recipe import Evaluation, Recipe, task_class
from headwise.runs.folder import MODEL, RESULT, FolderError, read_inputs, read_model, read_recipe
from headwise.tasks.scores import Outcome, Score
from headwise.tasks.task import Each, Task
from headwise.training.loss import aside_of_training
from headwise.training.watching import bars, say, say_begin

TEST = "test"  # the name of the test part
OTHER = "other"  # the name of a part that the command line gives other data


@dataclass
class _WithBar(Each):
    """Computes something of each batch under a bar."""

    console: Console
    label: str

    def __call__(self, batches: Sequence[Any], compute: Any) -> list[Any]:
        with bars(self.console, transient=True) as shown_bars:
            bar = shown_bars.add_task(self.label, total=len(batches), figures="batches evaluated")
            return [compute(batch) for batch in shown_bars.track(batches, task_id=bar)]


def evaluate(
    model: HeadwiseModel, task: Task, part: str, settings: Evaluation, console: Console, label: str
) -> Outcome:
    """Evaluates a model on a part of the data, with the ablations of its settings."""
    say_begin(console, f"{label}: evaluation on {part} begins")
    with as_evaluated(model, settings, console, label), aside_of_training(model):
        return task.evaluate(model, part, settings, _WithBar(console, label))


@contextmanager
def as_evaluated(
    model: HeadwiseModel, settings: Evaluation, console: Console, label: str
) -> Iterator[None]:
    """While this context is open, the model computes with the ablations of the evaluation."""
    held = {type(system) for system in systems(model).values()}
    fitting = {n: asked for n, asked in settings.ablation.items() if system_class(n) in held}
    for name in settings.ablation.keys() - fitting.keys():
        text = f"the ablation of {name} changes nothing: {label} has no such system"
        say(console, text, style="yellow")
    with ablated(model, fitting):
        yield


def evaluate_tests(
    folder: Path, recipe: Recipe, task: Task, result: RunResult, console: Console
) -> RunResult:
    """Returns the result of a run with its scores on the further test sets of its recipe.

    It is evaluated on those that are new, or whose items have changed.
    """
    scores: dict[str, list[Score]] = {}
    for name in recipe.data.tests:
        is_there = _outcome_file(folder, name).is_file()
        outcome = read_outcome(folder, name) if is_there else None
        if outcome is None or outcome.digest != task.digest(name):
            model, label = read_model(folder), folder.resolve().name
            outcome = evaluate(model, task, name, recipe.evaluation, console, label)
            write_outcome(outcome, folder, task, name)
        scores[name] = without_rows(outcome.scores)
    return result.model_copy(update={"tests": scores})


def without_rows(scores: Sequence[Score]) -> list[Score]:
    """The scores for a result, whose rows stand in the outcome alone."""
    return [score.model_copy(update={"rows": []}) for score in scores]


def write_outcome(outcome: Outcome, folder: Path, task: Task, part: str = TEST) -> None:
    """Writes what an evaluation gave, and for the eye its outputs and pictures by themselves."""
    path = _outcome_file(folder, part)
    end = path.stem.removeprefix("outcome")
    if outcome.outputs:
        write_text(folder / f"outputs{end}.txt", "\n".join(outcome.outputs) + "\n")
    for number, picture in enumerate(outcome.pictures, 1):
        name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")
        write_bytes(folder / f"pictures{end}" / f"{number:02}-{name}.png", picture.bytes)
    kept = outcome.model_copy(update={"digest": task.digest(part)})
    write_text(path, kept.model_dump_json(indent=1))


def read_outcome(folder: Path, part: str = TEST) -> Outcome:
    """Returns what the evaluation of a run on the test part, or a further test set, gave."""
    path = _outcome_file(folder, part)
    try:
        return Outcome.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise FolderError(
            f"{path} cannot be read ({reason}): delete it and {RESULT} from {folder}, and start "
            f"the run again, which is then evaluated again"
        ) from error


def _outcome_file(folder: Path, part: str) -> Path:
    return folder / ("outcome.json" if part == TEST else f"outcome-{part}.json")


@dataclass(frozen=True)
class Opened:
    """A finished run and one part of its data."""

    run: Path  # folder of the run
    recipe: Recipe  # of the run, with the changes of the command line
    task: Task  # its data
    part: str  # name of the part


def open_part(
    run: Path,
    part: str,
    console: Console,
    *,
    data: Sequence[str] = (),
    changes: Sequence[str] = (),
) -> Opened:
    """Reads the recipe of a finished run and a part of its data.

    Args:
        run: folder of the run.
        part: `train`, `validation`, `test`, or the name of a further test set.
        console: for notes.
        data: other data in the place of a part: `KEY=VALUE`, with keys of `data`.
        changes: to the recipe, as `--set` takes them.
    """
    if data:
        part, keys = OTHER, [f"data.tests.{OTHER}.{each}" for each in data]
        try:
            recipe = read_recipe(run, [*changes, "data.tests={}", *keys])
            return Opened(run, recipe, task_of(run, recipe, console), part)
        except (DataError, RecipeError) as error:
            raise ValueError(f"--data is {', '.join(data)}: {error}") from error
    recipe = read_recipe(run, changes)
    parts = [*PARTS, *recipe.data.tests]
    if part not in parts:
        raise ValueError(f"--part is {part!r}, of which {run} has none, {one_of(part, parts)}")
    return Opened(run, recipe, task_of(run, recipe, console), part)


def task_of(run: Path, recipe: Recipe, console: Console) -> Task:
    """Reads the data of a finished run, and says so if it was trained on others."""
    task = task_class(recipe.task)(recipe, run / MODEL)
    if read_inputs(run).get("data", task.digest()) != task.digest():
        say(console, f"{run.resolve().name} was trained on other data than these", style="yellow")
    return task


def model_of(opened: Opened) -> HeadwiseModel:
    """Returns the model of an opened run; one that was made for other data is an error."""
    model, recipe = read_model(opened.run), opened.recipe
    sizes = opened.task.sizes(recipe, opened.task)
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


def evaluate_part(opened: Opened, console: Console, ablations: Mapping[str, Any]) -> Outcome:
    """Evaluates a finished run; `ablations` has names of systems, and how they compute instead."""
    settings = opened.recipe.evaluation
    settings = settings.model_copy(update={"ablation": {**settings.ablation, **ablations}})
    label = opened.run.resolve().name
    return evaluate(model_of(opened), opened.task, opened.part, settings, console, label)


def compare(outcome: Outcome, other: Outcome) -> Estimate:
    """Returns the difference of the first score of a run to that of another, over the items."""
    first, second = outcome.scores[0], other.scores[0]
    if (first.name, first.note) != (second.name, second.note):
        raise ValueError(
            f"the runs have {first.name} ({first.note}) and {second.name} ({second.note}), "
            f"expected scores that are computed alike; give both the same settings with "
            f"--set evaluation.KEY=VALUE"
        )
    return contrast(Scores.of([first]), Scores.of([second]))


def check_same_items(run: Opened, other: Opened) -> None:
    """Raises `ValueError` unless two runs are scored on the same items."""
    if run.recipe.task != other.recipe.task:
        raise ValueError(
            f"{run.run} is a run of {run.recipe.task} and {other.run} one of {other.recipe.task}, "
            f"expected runs of the same task"
        )
    if run.task.digest(run.part) != other.task.digest(other.part):
        of_both = " and ".join(str(each.task.facts[each.part]) for each in (run, other))
        raise ValueError(
            f"{run.run} and {other.run} are not scored on the same items, expected runs with equal "
            f"data; their part {run.part} has {of_both}"
        )
