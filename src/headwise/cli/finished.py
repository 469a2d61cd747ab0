"""The commands for finished runs: evaluate, predict, analyse, explore."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from typer import Argument, Option

from headwise.cli.app import (
    Changes,
    Import,
    Json,
    command,
    command_line,
    print_json,
    print_next,
)
from headwise.runs.names import MODEL, READ_AGAIN, check_run, is_plain
from headwise.training.watching import say, silence_libraries

if TYPE_CHECKING:
    from headwise.analysis.statistics import Estimate
    from headwise.tasks.scores import Outcome

Run = Annotated[Path, Argument(metavar="RUN", help="Folder of a finished run.")]
Models = Annotated[list[Path], Argument(metavar="MODEL", help="Runs, or models.")]
Part = Annotated[str, Option(help="train, validation, test, or a further test set.")]
_ABLATE = Option(metavar="SYSTEM=NAME[,OPTION=VALUE]", help="An ablation. May be repeated.")
Ablate = Annotated[list[str] | None, _ABLATE]
Against = Annotated[Path | None, Option(help="Give the differences to another run.")]
Page = Annotated[Path | None, Option(help="What to write.", show_default="beside the model")]


@command("Look inside", "headwise evaluate runs/lm-pydoc-moa --part validation")
def evaluate(
    run: Run,
    part: Part = "test",
    against: Against = None,
    ablate: Ablate = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Evaluate a finished run on a part of its data or on other data, with 95% intervals.

    Other data are a further test set: --part NAME --set data.tests.NAME.files.test=FILE.

    With --ablate a system computes otherwise than it was trained, as SYSTEM=uniform; headwise
    recipes --keys SYSTEM lists what there is. The run of --against is not ablated.
    """
    folders = [run] if against is None else [run, against]
    for folder in folders:
        check_run(folder, changes or [])

    from headwise.analysis.ablations import parse_ablations
    from headwise.data.divide import lines_of
    from headwise.runs.evaluate import Opened, check_same_items, compare

    silence_libraries()
    console, ablations = Console(stderr=as_json), [parse_ablations(ablate or []), {}]
    opened = [Opened(folder, part, console, changes or []) for folder in folders]
    if against is not None:
        check_same_items(*opened)
    pairs = zip(opened, ablations, strict=False)
    outcomes = [each.evaluate(console, asked) for each, asked in pairs]
    difference = compare(*outcomes) if against is not None else None
    if as_json:
        document, *others = [
            {
                "run": each.run,
                "part": each.part,
                "items": len(outcome.scores[0].rows),
                "item_name": each.task.item_name,
                "scores": [score.model_dump(exclude={"rows"}) for score in outcome.scores],
            }
            for each, outcome in zip(opened, outcomes, strict=True)
        ]
        for other in others:
            document |= {"against": other, "difference": difference}
        print_json(document)
        return
    for line in lines_of({opened[0].part: opened[0].task.facts[opened[0].part]}):
        say(console, line)
    notes = ["".join(f", ablated: {each}" for each in ablate or []), ""]
    for each, outcome, note in zip(opened, outcomes, notes, strict=False):
        if against is not None:
            say(console, f"{each.run}{note}", style="bold")
        for score in outcome.scores:
            say(console, f"{score}  {score.note}".rstrip())
    if difference is not None:
        say(console, _in_words(difference, outcomes[0]))
    print_next(console, run, "analyse")


def _in_words(difference: "Estimate", outcome: "Outcome") -> str:
    """How the first scores of two runs differ, with interval and p, and what these leave out."""
    from headwise.analysis.statistics import p_value

    score = outcome.scores[0]
    value, low, high = (
        f"{number:+.{score.digits + 1}f}"
        for number in (difference.value, difference.low, difference.high)
    )
    if difference.why:
        return f"difference of {score.name}: {value}, without interval and test: {difference.why}"
    return (
        f"difference of {score.name}: {value} [{low}, {high}], {p_value(difference.p)} over items\n"
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

    What it does is the task of the run. It translates or classifies each line (a tab divides the
    texts of a pair), fills in each `<mask>`, or continues each text: of text files, of --text, or
    else of standard input. It draws images (into RUN.png by default), or removes the noise from
    sound files (into NAME-enhanced.wav).
    """
    check_run(run, changes or [], ["evaluation"])

    from headwise.recipes.recipe import task_class
    from headwise.runs.evaluate import as_evaluated
    from headwise.runs.folder import read_model, read_recipe
    from headwise.tasks.task import Wish

    silence_libraries()
    recipe, model = read_recipe(run, changes or []), read_model(run)
    wish = Wish(inputs or (), texts or (), number, output)
    with as_evaluated(model, recipe.evaluation, Console(stderr=True), run.resolve().name):
        lines = task_class(recipe.task).predict(run / MODEL, recipe, model, wish)
        if as_json:
            print_json({"task": recipe.task, "predictions": list(lines)})
            return
        for line in lines:  # one by one, and nothing is kept of a long input
            typer.echo(line)


@command("Look inside", "headwise analyse runs/lm-pydoc-moa --ablations model")
def analyse(
    models: Models,
    text: Annotated[Path | None, Option(help="Of models of no run: a file with items.")] = None,
    part: Part = "test",
    ablations: Annotated[Literal["none", "model", "units"], Option()] = "units",
    output: Page = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Write a page on what the heads of models do: what each is worth, and what goes to it.

    MODEL are folders of finished runs on the same data, which are shown side by side. With --text
    they are folders of models of transformers, or names on the Hugging Face hub, which read each
    line; a translation model source, tab, target; a classifier text, tab, class.

    The ablations show what something is worth, and take most of the time. Of model, all modules of
    a system are changed at once; of units, each head and each expert is removed too.
    """
    _check_models(models, changes, *READ_AGAIN)

    from headwise.report.analysing import PAGE, analyse_runs

    silence_libraries()
    console, folder = Console(stderr=as_json), (output or _beside(models[0])).expanduser()
    found = analyse_runs(
        models,
        folder,
        console,
        part=part,
        changes=changes or [],
        level=ablations,
        text=text,
        command=command_line(),
    )
    if as_json:
        findings = {each.name: each.findings for each in found}
        read = {each.name: each.data for each in found}
        paths = {"page": folder / PAGE, "tables": folder / "tables"}
        print_json({**paths, "data": read, "findings": findings})
        return
    for each in found:
        for finding in each.findings:
            say(console, f"{each.name}: {finding}" if len(found) > 1 else finding)
    say(console, f"page for your browser: {folder / PAGE}")
    print_next(console, models[0], "explore")


@command("Look inside", 'headwise explore runs/lm-pydoc-moa --text "The with statement"')
def explore(
    models: Models,
    text: Annotated[str | None, Option(help="A text to read.")] = None,
    item: Annotated[int | None, Option(min=0, help="Number of an item of the data.")] = None,
    part: Part = "test",
    target: Annotated[str | None, Option(help="What the decoder of a translation reads.")] = None,
    without: Annotated[
        Literal["none", "units", "heads"], Option(help="What is removed, one at a time.")
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

    The page also says what each part is worth on this input: without it the model computes once
    more, ahead of time. A click then removes it. Parts are the units of a system (experts,
    mechanisms, or heads); with --without heads also its heads, where these are not the units.
    """
    if text is not None and item is not None:
        raise ValueError("--text and --item are given, expected one of them")
    _check_models(models, changes, "evaluation")

    from headwise.report.explore import explore_runs
    from headwise.report.inputs import Source

    silence_libraries()
    console, asked = Console(stderr=True), Source(text, target, part, item or 0)
    explored = explore_runs(models, asked, changes or [], without, console)
    page = explored.save((output or _beside(models[0]) / "explore.html").expanduser())
    if as_json:
        print_json({"page": page, "removals": explored.removals.to_dict("records")})
    else:
        say(Console(), f"page for your browser: {page}")


def _check_models(models: Sequence[Path], changes: Sequence[str] | None, *keys: str) -> None:
    """Tells a wrong name of a folder before PyTorch is loaded."""
    for model in models:
        if not is_plain(model):
            check_run(model, changes or [], keys)


def _beside(model: Path) -> Path:
    """The folder of a model, for its pages; this one for a name on the hub."""
    return model if model.is_dir() else Path()
