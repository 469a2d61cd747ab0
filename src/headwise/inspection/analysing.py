"""`headwise analyse`: what the heads of finished runs do on one part of their data."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from headwise.analysis.behaviour.page.page import render_analysis
from headwise.analysis.behaviour.questions import ask, words_of
from headwise.analysis.behaviour.results import AnalysisRecord, RunAnalysis
from headwise.analysis.surroundings import machine, versions
from headwise.evaluation import Opened, check_same_items, model_of, open_part
from headwise.experiment.outcomes import as_evaluated
from headwise.experiment.preparing import batches
from headwise.files import write_text
from headwise.tasks.splits import PARTS
from headwise.training.progress import RunBars

PAGE, RECORD = "analysis.html", "analysis.json"


def analyse_runs(
    runs: Sequence[Path],
    part: str,
    folder: Path,
    command: str,
    console: Console,
    *,
    against: Path | None = None,
    data: str | None = None,
    changes: Sequence[str] = (),
    note: Callable[[str], object] = lambda text: None,
) -> AnalysisRecord:
    """Analyses finished runs side by side and writes the page and its numbers.

    Args:
        runs: folders of runs on the same data.
        part: `train`, `validation`, `test`, or the name of a further test set.
        folder: where the page and the record are written.
        command: that reproduces this.
        console: for bars and notes.
        against: a run to which differences are given.
        data: other data in the place of a part, as `evaluate_run` takes them.
        changes: to the recipes, as `--set` takes them.
        note: called with notes on the changes.

    Raises:
        FolderError: there is no finished run in a folder.
        ValueError: the runs are not of the same items, or other arguments do not fit them.
    """
    folders = list(dict.fromkeys([*runs, *([against] if against else [])]))
    opened = [
        open_part(run, part, console, data=data, changes=changes, note=note) for run in folders
    ]
    for other in opened[1:]:
        check_same_items(opened[0], other)
    names = _names(folders)
    found = [
        _analysed(run, name, console, changes) for run, name in zip(opened, names, strict=True)
    ]
    record = AnalysisRecord(
        title=f"What the heads do: {', '.join(names)}",
        command=command,
        part=_part(opened[0]),
        runs=found,
        against=None if against is None else names[folders.index(against)],
        versions=versions(),
        machine=machine(),
    )
    write_text(folder / RECORD, record.model_dump_json(indent=1))
    write_text(folder / PAGE, render_analysis(record))
    return record


def _analysed(opened: Opened, name: str, console: Console, changes: Sequence[str]) -> RunAnalysis:
    model, task = model_of(opened, changes), opened.task
    items = task.part(opened.part)
    with (
        as_evaluated(model, opened.recipe.evaluation, console, name),
        RunBars(console, transient=True) as bars,
    ):
        bar = bars.begin(name, len(items), figures=f"{task.item_name} analysed")
        answers = ask(
            model,
            batches(task, items, opened.recipe.training),
            task.positions,
            lambda count: bars.update(bar, advance=count),
        )
    return RunAnalysis(name=name, words=words_of(model), **answers)


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of runs: those of their folders, with the folder above where they are equal."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{folder.resolve().parent.name}/{folder.resolve().name}" for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _part(opened: Opened) -> str:
    """The part of the data in words, and how much it is."""
    label = opened.part if opened.part in PARTS else f"test {opened.part}"
    size = f"{len(opened.task.part(opened.part)):,} {opened.task.item_name}"
    return f"{opened.part}: {opened.task.notes.get(label, size)}"
