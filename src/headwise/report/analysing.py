"""`headwise analyse`: what the heads of finished runs, or of other models, do on data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from headwise.analysis.ablations.ablating import analyse_ablations, bar_of
from headwise.analysis.ablations.declared import Level
from headwise.analysis.ablations.quality import Quality
from headwise.analysis.ablations.results import AblationAnalysis
from headwise.analysis.decisions.record import (
    AnalysisRecord,
    RunAnalysis,
    ask,
    courses_of,
)
from headwise.analysis.words import words_of
from headwise.data.tokenizers import token_names
from headwise.models.modeling import HeadwiseModel
from headwise.report.analysis import Analysis
from headwise.report.analysis_page.page import write_analysis
from headwise.report.plain_models import check_finite, open_plain
from headwise.report.text_items import TextItems
from headwise.runs.evaluate import Opened, as_evaluated, check_same_items, model_of, open_part
from headwise.runs.folder import distinct_names, locked, read_result
from headwise.runs.names import is_plain
from headwise.training.batches import Batches
from headwise.training.watching import bars

FINISHED = "ablations"  # the folder with the ablations that are finished


class Request(NamedTuple):
    """What is to be analysed."""

    runs: Sequence[Path]  # folders of finished runs on the same data
    part: str = "test"  # `train`, `validation`, `test`, or the name of a further test set
    against: Path | None = None  # a run to which differences are given; None for none
    data: Sequence[str] = ()  # other data in the place of a part, as `open_part` takes them
    level: Level = "units"  # which ablations are made, see `declared_ablations`
    changes: Sequence[str] = ()  # to the recipes, as `--set` takes them
    text: Path | None = None  # what models of no run read: a file with an item in each line


def analyse_runs(request: Request, folder: Path, command: str, console: Console) -> AnalysisRecord:
    """Analyses finished runs side by side and writes the page and its numbers."""
    against, folders = request.against, _different(request)
    plain = [run for run in folders if is_plain(run)]
    if plain or request.text is not None:
        return _analyse_texts(request, plain, folders, folder, command, console)
    opened = [
        open_part(run, request.part, console, data=request.data, changes=request.changes)
        for run in folders
    ]
    for other in opened[1:]:
        check_same_items(opened[0], other)
    names = distinct_names(folders)
    reference = None if against is None else names[folders.index(against)]
    with locked(folder):
        found = [
            _analysed(run, name, request, console) for run, name in zip(opened, names, strict=True)
        ]
        return write_analysis(folder, found, _part(opened[0]), against=reference, command=command)


def _analyse_texts(
    request: Request,
    plain: list[Path],
    folders: list[Path],
    folder: Path,
    command: str,
    console: Console,
) -> AnalysisRecord:
    """Analyses models of no run on the lines of a text."""
    if request.text is None:
        kind = "is a model" if plain[0].is_dir() else "is no folder, at best a model on the hub"
        raise ValueError(f"{plain[0]} {kind}, which has no data: add --text FILE for it to read")
    if plain != folders or request.changes or request.data or request.part != "test":
        raise ValueError(
            "--text is given, expected models of no run alone, and neither --set, --data nor "
            "--part: a run reads its own data, which these options change"
        )
    names, found = distinct_names(folders), []
    read: dict[str, str] = {}
    with locked(folder):
        for path, name in zip(folders, names, strict=True):
            items = TextItems(*open_plain(path), request.text)
            read[name] = items.in_words
            _say(console, f"{name}: analysed on {items.in_words}")
            two = items.task == "translation"
            per = "example" if items.task == "classification" else "token"
            analysis = Analysis(
                items.model,
                items.batches,
                tokens={"encoder": "input_ids"} if two else "input_ids",
                names=token_names(items.tokenizer),
                quality=items.losses if items.task and request.level != "none" else None,
                higher_is_better=False,
                quality_name=f"nats per {per}",
                ablations=request.level,
                name=name,
            )
            found.append(analysis.record)
        reference = None if request.against is None else names[-1]
        # Each model has tokens of its own, and may read more lines of a long file than another.
        parts = dict.fromkeys(read.values())
        part = "; ".join(
            parts if len(parts) == 1 else [f"{name}: {of}" for name, of in read.items()]
        )
        return write_analysis(folder, found, part, against=reference, command=command)


def _different(request: Request) -> list[Path]:
    """The folders of the runs, each once, and last the one to which differences are given."""
    folders: dict[Path, Path] = {}
    for run in request.runs:
        folders.setdefault(run.resolve(), run)
    if request.against is None:
        return list(folders.values())
    folders.pop(request.against.resolve(), None)
    if not folders:
        raise ValueError(
            f"--against is {request.against}, which is the run that is analysed, expected another "
            f"one; leave --against out to analyse a single run"
        )
    return [*folders.values(), request.against]


def _analysed(opened: Opened, name: str, request: Request, console: Console) -> RunAnalysis:
    model = model_of(opened)
    check_finite(opened.run, model)
    with as_evaluated(model, opened.recipe.evaluation, console, name):
        answers = _asked(model, opened, name, console)
        ablations = _ablations(model, opened, name, request.level, console)
    result = read_result(opened.run)
    return RunAnalysis(
        name=name,
        words=words_of(model),
        **answers,
        ablations=ablations,
        courses=None if result is None else courses_of(result),
    )


def _asked(model: HeadwiseModel, opened: Opened, name: str, console: Console) -> dict[str, Any]:
    task, settings = opened.task, opened.recipe.training
    items = task.stored(opened.part)
    _say(console, f"{name}: {len(items):,} {task.item_name} are analysed")
    with bars(console, transient=True) as shown:
        bar = shown.add_task(name, total=len(items), figures=f"{task.item_name} analysed")
        return ask(
            model,
            Batches(items, task.collate, settings.batch_tokens).epoch(),
            task.describe,
            lambda count: shown.update(bar, advance=count),
        )


def _ablations(
    model: HeadwiseModel, opened: Opened, name: str, level: Level, console: Console
) -> AblationAnalysis | None:
    quality = Quality.of_task(model, opened.task, opened.part, opened.recipe.evaluation)
    if level != "none":
        _say(console, f"{name}: ablations are evaluated one by one")
    with bars(console, transient=True) as shown:
        folder = opened.run / FINISHED
        return analyse_ablations(
            model, quality, level=level, folder=folder, progress=bar_of(shown, name)
        )


def _say(console: Console, text: str) -> None:
    """Says what begins, where no bar shows it."""
    if not console.is_terminal:
        console.print(text, highlight=False, markup=False)


def _part(opened: Opened) -> str:
    """Returns, in words, which part of the data is analysed and how many items it has."""
    items = opened.task.stored(opened.part)
    return f"{opened.part}: {len(items):,} {opened.task.item_name}"
