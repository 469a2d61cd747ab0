"""What evaluation gives: computed, kept in the folder of a run, and compared with that of another.

A finished run is evaluated again on any part, on other data, with ablations, and against another
run on the same items.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from headwise.analysis.results import TEST, RunResult
from headwise.analysis.statistics import Estimate, Scores, contrast
from headwise.data.settings import PARTS
from headwise.files import write_bytes, write_text
from headwise.messages import expected_one_of, shown
from headwise.models.inspect import systems
from headwise.models.modeling import HeadwiseModel
from headwise.models.plan import system_class
from headwise.pretrained.ablate import ablated
from headwise.recipes.recipe import Evaluation, Recipe, task_class
from headwise.runs.folder import MODEL, read_inputs, read_model, read_recipe, readable
from headwise.tasks.scores import Outcome, Score
from headwise.tasks.task import Each, Task
from headwise.training.loss import aside_of_training
from headwise.training.watching import bars, say, say_begin


def evaluate(
    model: HeadwiseModel, task: Task, part: str, settings: Evaluation, console: Console, label: str
) -> Outcome:
    """Evaluates a model on a part of the data, with the ablations of its settings."""

    def under_a_bar(batches: Sequence[Any], compute: Callable[[Any], Any]) -> list[Any]:
        with bars(console, transient=True) as shown_bars:
            bar = shown_bars.add_task(label, total=len(batches), figures="batches evaluated")
            return [compute(batch) for batch in shown_bars.track(batches, task_id=bar)]

    say_begin(console, f"{label}: evaluation on {part} begins")
    with as_evaluated(model, settings, console, label), aside_of_training(model):
        outcome = task.evaluate(model, part, settings, cast(Each, under_a_bar))
    return outcome.model_copy(update={"digest": task.digest(part)})


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


# --- in the folder of a run ---------------------------------------------------------------------


def with_scores(
    result: RunResult, folder: Path, recipe: Recipe, task: Task, console: Console, *, is_new: bool
) -> RunResult:
    """Returns the result of a run with its scores on the test part and the further test sets.

    Unless the model is new, it is evaluated only on those whose items are.
    """
    scores: dict[str, list[Score]] = {}
    model = None
    for part in (TEST, *recipe.data.tests):
        is_there = _outcome_file(folder, part).is_file() and not is_new
        outcome = read_outcome(folder, part) if is_there else None
        if outcome is None or outcome.digest != task.digest(part):
            model = model or read_model(folder)
            label = folder.resolve().name
            outcome = evaluate(model, task, part, recipe.evaluation, console, label)
            _write_outcome(outcome, folder, part)
        scores[part] = [score.model_copy(update={"rows": []}) for score in outcome.scores]
    return result.model_copy(update={"scores": scores.pop(TEST), "tests": scores})


def _write_outcome(outcome: Outcome, folder: Path, part: str) -> None:
    """Writes what an evaluation gave, and for the eye its outputs and pictures by themselves."""
    path = _outcome_file(folder, part)
    end = path.stem.removeprefix("outcome")
    if outcome.outputs:
        write_text(folder / f"outputs{end}.txt", "\n".join(outcome.outputs) + "\n")
    for number, picture in enumerate(outcome.pictures, 1):
        name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")
        write_bytes(folder / f"pictures{end}" / f"{number:02}-{name}.png", picture.bytes)
    write_text(path, outcome.model_dump_json(indent=1))


def read_outcome(folder: Path, part: str = TEST) -> Outcome:
    """Returns what the evaluation of a run on the test part, or a further test set, gave."""
    with readable(path := _outcome_file(folder, part)):
        return Outcome.model_validate_json(path.read_bytes())


def _outcome_file(folder: Path, part: str) -> Path:
    return folder / ("outcome.json" if part == TEST else f"outcome-{part}.json")


# --- of a finished run --------------------------------------------------------------------------


class Opened:
    """A finished run and one part of its data.

    Args:
        run: folder of the run.
        part: `train`, `validation`, `test`, or the name of a further test set.
        console: for notes.
        changes: to the recipe, as `--set` takes them.
    """

    def __init__(self, run: Path, part: str, console: Console, changes: Sequence[str] = ()) -> None:
        self.run, self.part, self.recipe = run, part, read_recipe(run, changes)
        parts = [*PARTS, *self.recipe.data.tests]
        if part not in parts:
            raise ValueError(
                f"--part is {part!r}, of which {run} has none, {expected_one_of(part, parts)}"
            )
        self.task = task_of(run, self.recipe, console)

    def read_model(self) -> HeadwiseModel:
        """Returns the model of the run; one that was made for other data is an error."""
        model = read_model(self.run)
        sizes, given = self.task.sizes(self.recipe, self.task), self.recipe.model_arguments
        needed = type(model.config)(**{key: given.get(key, size) for key, size in sizes.items()})
        for key in sizes.keys() - {"max_length"}:  # it reads longer and shorter texts too
            name = "id2label" if key == "classes" else key
            now, then = getattr(needed, name), getattr(model.config, name)
            if now != then:
                raise ValueError(
                    f"the data need a model whose {key} is {shown(now)}, but that of {self.run} is "
                    f"{shown(then)}; give the data that the run was trained on, without changes on "
                    f"which the model depends"
                )
        return model

    def evaluate(self, console: Console, ablations: Mapping[str, Any]) -> Outcome:
        """Evaluates the run; `ablations` has names of systems, and how they compute instead."""
        settings = self.recipe.evaluation
        settings = settings.model_copy(update={"ablation": {**settings.ablation, **ablations}})
        label = self.run.resolve().name
        return evaluate(self.read_model(), self.task, self.part, settings, console, label)


def task_of(run: Path, recipe: Recipe, console: Console) -> Task:
    """Reads the data of a finished run, and says so if it was trained on others."""
    task = task_class(recipe.task)(recipe, run / MODEL)
    if read_inputs(run)[:1] not in ([], [task.digest()]):
        say(console, f"{run.resolve().name} was trained on other data than these", style="yellow")
    return task


def compare(outcome: Outcome, other: Outcome) -> Estimate:
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
    return contrast(Scores.of([first]), Scores.of([second]))


def check_same_items(run: Opened, other: Opened) -> None:
    """Raises `ValueError` unless two runs are scored on the same items."""
    if run.task.digest(run.part) != other.task.digest(other.part):
        of_both = " and ".join(str(each.task.facts[each.part]) for each in (run, other))
        raise ValueError(
            f"{run.run} and {other.run} are not scored on the same items, expected runs of the "
            f"same task with equal data; their part {run.part} has {of_both}"
        )
