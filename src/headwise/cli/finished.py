"""The commands for finished runs: evaluate, predict, analyse, explore."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from typer import Argument, Option

from headwise.cli.app import Changes, Import, Json, command, command_line, print_json, print_next
from headwise.runs.names import MODEL, READ_AGAIN, check_run, is_transformers_model
from headwise.training.console import say, silence_libraries

if TYPE_CHECKING:
    from headwise.analysis.statistics import Estimate
    from headwise.tasks.scores import Outcome

Run = Annotated[Path, Argument(metavar="RUN", help="Folder of a finished run.")]
Models = Annotated[list[Path], Argument(metavar="MODEL", help="Runs, or models.")]
Split = Annotated[str, Option(help="train, validation, test, or a further test set.")]
_ABLATE = Option(metavar="SYSTEM=NAME[,OPTION=VALUE]", help="An ablation. May be repeated.")
Ablate = Annotated[list[str] | None, _ABLATE]
Against = Annotated[Path | None, Option(help="Give the differences to another run.")]
Page = Annotated[Path | None, Option(help="Where to write it.", show_default="beside the model")]


@command("Look inside", "headwise evaluate runs/lm-pydoc-moa --split validation")
def evaluate(
    run: Run,
    split: Split = "test",
    against: Against = None,
    ablate: Ablate = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Evaluate a finished run on a split of its data or on other data, with 95% intervals.

    Other data are a further test set: --split NAME --set data.tests.NAME.files.test=FILE.

    With --ablate a system computes otherwise than it was trained, as SYSTEM=uniform; headwise
    recipes --keys SYSTEM lists what there is. The run of --against is not ablated.
    """
    folders = [run] if against is None else [run, against]
    for folder in folders:
        check_run(folder, changes or [])

    from headwise.analysis.ablations import parse_ablations
    from headwise.data.splits import format_facts
    from headwise.runs.evaluate import check_same_items, open_run, outcome_difference

    silence_libraries()
    console, ablations = Console(stderr=as_json), [parse_ablations(ablate or []), {}]
    runs = [open_run(folder, split, console, changes or []) for folder in folders]
    if against is not None:
        check_same_items(*runs)
    pairs = zip(runs, ablations, strict=False)
    outcomes = [finished.evaluate(console, changed) for finished, changed in pairs]
    difference = outcome_difference(*outcomes) if against is not None else None
    if as_json:
        document, *baseline = [
            {
                "run": finished.folder,
                "split": finished.split,
                "items": len(outcome.scores[0].rows),
                "item_name": finished.task.item_name,
                "scores": [score.model_dump(exclude={"rows"}) for score in outcome.scores],
            }
            for finished, outcome in zip(runs, outcomes, strict=True)
        ]
        if baseline:
            document |= {"against": baseline[0], "difference": difference}
        print_json(document)
        return
    for line in format_facts({split: runs[0].task.facts[split]}):
        say(console, line)
    notes = ["".join(f", ablated: {ablation}" for ablation in ablate or []), ""]
    for finished, outcome, note in zip(runs, outcomes, notes, strict=False):
        if against is not None:
            say(console, f"{finished.folder}{note}", style="bold")
        for score in outcome.scores:
            say(console, f"{score}  {score.note}".rstrip())
    if difference is not None:
        say(console, _format_difference(difference, outcomes[0]))
    print_next(console, run, "analyse")


def _format_difference(difference: "Estimate", outcome: "Outcome") -> str:
    """Returns the difference of two runs with its interval and p, and what these do not cover."""
    from headwise.analysis.statistics import p_value
    from headwise.report.page import format_interval, format_number

    score = outcome.scores[0]
    digits = score.digits + 1
    value = format_number(difference.value, digits, sign=True)
    if math.isnan(difference.p):
        return (
            f"difference of {score.name}: {value}, without interval and test: {difference.reason}"
        )
    interval = format_interval(difference.low, difference.high, digits, before=" ", sign=True)
    return (
        f"difference of {score.name}: {value}{interval}, {p_value(difference.p)} over items\n"
        f"These are single runs: interval and p hold the chance of the items, and nothing of that "
        f"of training. With other seeds the difference may be another."
    )


@command("Use", 'headwise predict runs/lm-pydoc-moa --text "The with statement"')
def predict(
    run: Run,
    inputs: Annotated[list[str] | None, Argument(metavar="INPUT", help="Files.")] = None,
    texts: Annotated[list[str] | None, Option("--text", help="A text. May be repeated.")] = None,
    number: Annotated[int | None, Option(min=1, help="How many texts or images to make.")] = None,
    output: Annotated[Path | None, Option(help="PNG or sound file to write.")] = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Use a finished run: translate, write, fill in masks, classify, draw or remove noise.

    The task of the run decides. The command translates or classifies each line (a tab divides the
    texts of a pair), fills in each `<mask>`, or continues each text: of text files, of --text, or
    else of standard input; without any it begins a text. It draws images (into RUN.png by default),
    or removes the noise from sound files (into NAME-enhanced.wav).
    """
    check_run(run, changes or [], ["evaluation"])

    from headwise.recipes.recipe import task_class
    from headwise.runs.evaluate import applied_ablations
    from headwise.runs.folder import read_model, read_recipe
    from headwise.tasks.task import PredictRequest

    silence_libraries()
    recipe, model = read_recipe(run, changes or []), read_model(run)
    request = PredictRequest(inputs or (), texts or (), number, output)
    with applied_ablations(model, recipe.evaluation, Console(stderr=True), run.resolve().name):
        lines = task_class(recipe.task).predict(run / MODEL, recipe, model, request)
        if as_json:
            print_json({"task": recipe.task, "predictions": list(lines)})
            return
        for line in lines:  # one by one, and nothing is kept of a long input
            typer.echo(line)


@command("Look inside", "headwise analyse runs/lm-pydoc-moa --ablation-level model")
def analyse(
    models: Models,
    text: Annotated[
        Path | None, Option(help="For models without a run: a file with items.")
    ] = None,
    split: Split = "test",
    ablation_level: Annotated[Literal["none", "model", "units"], Option()] = "units",
    output: Page = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Write a page on the heads of models: what each decides, and what each is worth.

    MODEL are folders of finished runs on the same data, which are shown side by side. With --text
    they are folders of language models of transformers, or names on the Hugging Face hub, which
    read each line.

    Ablations show what a part is worth, and take most of the time. At the level model, all modules
    of a system are changed at once; at the level units, each head and each expert is removed too.
    """
    _check_models(models, changes, *READ_AGAIN)

    from headwise.report.analysing import analyse_runs
    from headwise.report.analysis import PAGE

    silence_libraries()
    console = Console(stderr=as_json)
    folder = (output or _page_folder(models[0])).expanduser()
    analyses = analyse_runs(
        models,
        folder,
        console,
        split=split,
        changes=changes or [],
        level=ablation_level,
        text=text,
        command=command_line(),
    )
    if as_json:
        data = {analysis.name: analysis.data for analysis in analyses}
        findings = {analysis.name: analysis.findings for analysis in analyses}
        paths = {"page": folder / PAGE, "tables": folder / "tables"}
        print_json({**paths, "data": data, "findings": findings})
        return
    for analysis in analyses:
        for finding in analysis.findings:
            say(console, f"{analysis.name}: {finding}" if len(analyses) > 1 else finding)
    say(console, f"page for your browser: {folder / PAGE}")
    print_next(console, models[0], "explore")


@command("Look inside", 'headwise explore runs/lm-pydoc-moa --text "The with statement"')
def explore(
    models: Models,
    text: Annotated[str | None, Option(help="A text to read.")] = None,
    item: Annotated[int | None, Option(min=0, help="Number of an item of the data.")] = None,
    split: Split = "test",
    target: Annotated[str | None, Option(help="What the decoder of a translation reads.")] = None,
    remove: Annotated[
        Literal["none", "units", "heads"], Option(help="The parts to remove one at a time.")
    ] = "units",
    output: Page = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Write a page on which the heads of models are seen at work on one input.

    MODEL are folders of finished runs of one task, which are shown side by side, folders of models
    of transformers, or names on the Hugging Face hub. Without a text they read the first item of
    the test part.

    The page also says what each part is worth on this input: for each part the model computes once
    more without it, and a click on the page shows the result. Parts are the units of a system
    (experts, mechanisms, or heads); with --remove heads also its heads, where these are no units.
    """
    if text is not None and item is not None:
        raise ValueError("--text and --item are given, expected one of them")
    _check_models(models, changes, "evaluation")

    from headwise.report.explore import explore_runs
    from headwise.report.explorer_input import Source

    silence_libraries()
    console, source = Console(stderr=True), Source(text, target, split, item or 0)
    explored = explore_runs(models, source, changes or [], remove, console)
    page = explored.save((output or _page_folder(models[0]) / "explore.html").expanduser())
    if as_json:
        print_json({"page": page, "removals": explored.removals.to_dict("records")})
    else:
        say(Console(), f"page for your browser: {page}")


def _check_models(models: Sequence[Path], changes: Sequence[str] | None, *keys: str) -> None:
    """Raises `ValueError` for a wrong folder, before PyTorch is loaded."""
    for model in models:
        if not is_transformers_model(model):
            check_run(model, changes or [], keys)


def _page_folder(model: Path) -> Path:
    """Returns the folder of a model, for its pages; the current one for a name on the hub."""
    return model if model.is_dir() else Path()
