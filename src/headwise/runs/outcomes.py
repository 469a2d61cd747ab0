"""Outcomes: what evaluation gives, computed, written into the folder of a run and read again."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.checksums import write_summed
from headwise.files import write_bytes
from headwise.models.ablation import LEARNED, ablated, held_systems
from headwise.models.base import HeadwiseModel
from headwise.recipes.settings import EvaluationSettings
from headwise.runs.folder import RESULT, is_main_process
from headwise.runs.planned import PlannedRun
from headwise.runs.reading import DamagedError, how_to_evaluate_again, read_model, read_record
from headwise.tasks.outcome import Outcome, Score
from headwise.tasks.task import Items, Task
from headwise.training.progress import RunBars

TEST = "test"  # the name of the test part
OUTPUTS, PICTURES, OUTCOME = "outputs.txt", "pictures", "outcome.json"


def evaluate(
    model: HeadwiseModel,
    task: Task,
    part: Items,
    settings: EvaluationSettings,
    console: Console,
    label: str,
) -> Outcome:
    """Evaluates a model on a part of the data and shows a progress bar."""
    with (
        as_evaluated(model, settings, console, label),
        torch.no_grad(),
        torch.random.fork_rng(),
        RunBars(console, transient=True) as bars,
    ):
        bar = bars.begin(label, len(part), figures=f"{task.item_name} evaluated")
        model.eval()
        return task.evaluate(model, part, settings, lambda n: bars.update(bar, advance=n))


@contextmanager
def as_evaluated(
    model: HeadwiseModel, settings: EvaluationSettings, console: Console, label: str
) -> Iterator[None]:
    """While this context is open, the model computes with the ablations of the evaluation."""
    for name, asked in settings.ablation.items():
        if asked != LEARNED and not held_systems(model, name):
            console.print(
                f"evaluation.ablation names {name}, which changes nothing: {label} has no system "
                f"of that name",
                style="yellow",
                highlight=False,
            )
    with ablated(model, settings.ablation):
        yield


def with_tests(result: RunResult, run: PlannedRun[RunResult], console: Console) -> RunResult:
    """Returns the result of a finished run with the scores on all further test sets.

    The run is evaluated on those that it was not evaluated on before, or whose data have changed.
    """
    task, folder, settings = run.task, run.folder, run.recipe.evaluation
    scores: dict[str, list[Score]] = {}
    model: HeadwiseModel | None = None
    for name, items in task.tests.items():
        outcome = stored_outcome(folder, task, name)
        if outcome is None:
            model = model or read_model(folder, type(task))
            outcome = evaluate(model, task, items, settings, console, f"{run.label} {name}")
            if is_main_process():
                write_outcome(outcome, folder, task, name)
        else:
            mend_outputs(outcome, run, console, name)
        scores[name] = outcome.scores
    if scores == result.tests:
        return result
    result = result.model_copy(update={"tests": scores})
    if is_main_process():
        write_summed(folder / RESULT, result.model_dump_json(indent=1))
    return result


def read_outcome(folder: Path, part: str = TEST) -> Outcome:
    """What the evaluation of a finished run on the test part, or a further test set, gave."""
    return read_record(Outcome, folder / _of_part(OUTCOME, part), how_to_evaluate_again(folder))


def stored_outcome(folder: Path, task: Task, part: str) -> Outcome | None:
    """What an earlier evaluation of a run gave on the items of a part.

    None if there was none, or if it is damaged, so that whoever asks evaluates the run again.
    """
    path = folder / _of_part(OUTCOME, part)
    if not path.is_file():
        return None
    try:
        outcome = read_outcome(folder, part)
    except DamagedError:
        return None
    return outcome if outcome.digest == task.digest_of(part) else None


def write_outcome(outcome: Outcome, folder: Path, task: Task, part: str = TEST) -> None:
    outcome = outcome.model_copy(update={"digest": task.digest_of(part)})
    for path, content in _outputs(outcome, folder, part):
        write_bytes(path, content)
    write_summed(folder / _of_part(OUTCOME, part), outcome.model_dump_json(indent=1))


def mend_outputs(
    outcome: Outcome, run: PlannedRun[RunResult], console: Console, part: str = TEST
) -> None:
    """Writes those of a run's outputs and pictures again that are not as evaluation gave them."""
    for path, content in _outputs(outcome, run.folder, part):
        if is_main_process() and not (path.is_file() and path.read_bytes() == content):
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
