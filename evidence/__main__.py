"""`python -m evidence`: the papers' claims, put to the test."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evidence.answers import answer
from evidence.claims import SCALES, Claim, Scale, papers
from evidence.experiments import FIRST_SEED, Conditions, Places, needed_runs
from evidence.judging import verdict_on
from evidence.page import claims_page, write_page
from evidence.questions import Question, claims_and_questions, find_questions
from evidence.training import measure_times, run_experiment, run_question
from headwise.cli.app import clear_errors, print_error
from headwise.messages import one_of
from headwise.runs.launching import RunsFailed
from headwise.training.watching import say, silence_libraries

app = typer.Typer(
    help="The papers' claims: what is known of them, and how to test them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...",
        help="Claims: W1 M1, or questions why: data-size.",
    ),
]
ScaleName = Annotated[
    str, typer.Option(metavar="laptop|gpu|paper", help="Size of the models and their data.")
]
Seeds = Annotated[
    int, typer.Option(min=1, max=100, help="How many seeds each system is trained with.")
]
First = Annotated[int, typer.Option("--first-seed", min=1, help="The first of these seeds.")]
Data = Annotated[
    Path,
    typer.Option(envvar="HEADWISE_DATA", help="Folder with the data, see docs/practice.md."),
]
Runs = Annotated[Path, typer.Option(help="Folder in which runs are trained.")]
Results = Annotated[Path, typer.Option(help="Folder in which results are kept.")]
_DATA, _RUNS, _RESULTS = Path("data"), Path("runs/claims"), Path("evidence/results")


@app.command("list")
def listing(scale: ScaleName = "laptop", results: Results = _RESULTS) -> None:
    """List the claims of the papers and what is known of them."""
    with clear_errors():
        at, places, console = _scale(scale), _places_to_read(results), Console()
        for paper in papers():
            console.print(paper.paper, style="underline", highlight=False, markup=False)
            table = Table("id", "claim", "where", "holds if", "status", box=None, pad_edge=False)
            for name, claim in paper.claims.items():
                status = verdict_on(claim, at, places).name
                told = (claim.says, claim.where, claim.holds_if, status)
                table.add_row(Text(name, style="bold"), *map(Text, told))
            console.print(table)


@app.command()
def run(
    ids: Ids = None,
    scale: ScaleName = "laptop",
    seeds: Seeds = 5,
    first: First = FIRST_SEED,
    jobs: Annotated[int, typer.Option(metavar="N", help="Train N runs at a time.")] = 1,
    data: Data = _DATA,
    runs: Runs = _RUNS,
    results: Results = _RESULTS,
    every: Annotated[bool, typer.Option("--all", help="Train for all claims.")] = False,
) -> None:
    """Train the runs that claims lack and print the verdicts; a stopped run continues."""
    with clear_errors("The same command goes on from here."):
        at, places, console = _scale(scale), Places(data, runs, results), Console()
        asked, questions = claims_and_questions(ids or [], at)
        numbers = range(first, first + seeds)
        if ids and every:
            raise ValueError(
                f"--all is given with the claims {' '.join(ids)}, expected one of both"
            )
        if not ids and not every:
            raise ValueError(
                "no claim is named, expected some, as in python -m evidence run W1, or --all: to "
                "train for all claims takes many hours"
            )
        try:
            for name, needed in needed_runs(asked, at).items():
                of = Conditions(at, name, places)
                run_experiment(of, needed.systems, numbers, console, jobs=jobs)
                if needed.times:
                    measure_times(of, needed.times, console)
            for question in questions.values():
                run_question(question, numbers, places, console, jobs=jobs)
        except RunsFailed as error:
            print_error(f"{error}\nThe same command tries again.")
            raise typer.Exit(1) from None
        _print_verdicts(asked, at, places, console)
        _print_answers(questions.values(), places, console)


@app.command()
def why(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Questions: data-size. By default all."),
    ] = None,
    scale: ScaleName = "laptop",
    results: Results = _RESULTS,
) -> None:
    """Print what is known of the questions why systems do worse; trains nothing."""
    with clear_errors():
        found = find_questions(names or [], _scale(scale)).values()
        _print_answers(found, _places_to_read(results), Console())


@app.command()
def page(
    output: Annotated[Path, typer.Option(help="File of the page.")] = Path("docs/claims.md"),
    results: Results = _RESULTS,
) -> None:
    """Write docs/claims.md, its pictures and the verdicts in docs/results.md from what is kept."""
    with clear_errors():
        places = _places_to_read(results)
        verdicts = {
            (name, scale): verdict_on(claim, scale, places)
            for paper in papers()
            for name, claim in paper.claims.items()
            for scale in SCALES
        }
        write_page(output, claims_page(papers(), verdicts, places))
        say(Console(), f"page: {output}")


def _print_verdicts(asked: dict[str, Claim], at: Scale, places: Places, console: Console) -> None:
    for name, claim in asked.items():
        verdict = verdict_on(claim, at, places)
        found = verdict.all_findings
        said = [(of.test, of.figures, of.difference, of.kind, of.remark) for of in found]
        lines = ["; ".join(filter(None, parts)) for parts in said]
        _print(f"{name}: {verdict.name}", lines, console)


def _print_answers(questions: Iterable[Question], places: Places, console: Console) -> None:
    for question in questions:
        _print(f"{question.name}: {question.asks}", answer(question, places).lines(), console)


def _print(title: str, lines: Iterable[str], console: Console) -> None:
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _scale(name: str) -> Scale:
    silence_libraries()
    for scale in SCALES:
        if scale == name:
            return scale
    raise ValueError(f"--scale is {name!r}, {one_of(name, SCALES)}")


def _places_to_read(results: Path) -> Places:
    """Returns the folders that a command reads if it trains nothing."""
    if not results.is_dir():
        raise FileNotFoundError(
            f"--results is {str(results)!r}, expected a folder that is there: name it, or start "
            f"where it lies"
        )
    return Places(_DATA, _RUNS, results)


if __name__ == "__main__":
    app()
