"""`headwise claims`: the papers' claims, put to the test."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.cli.printing import clear_errors, print_error, print_path, silence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwise.claims.catalogue.declared import Scale
    from headwise.claims.catalogue.experiments import Places
    from headwise.claims.catalogue.needed import Needed
    from headwise.claims.why.questions import Question

claims = typer.Typer(help="The papers' claims: what is known of them, and how to test them.")

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...",
        help="Claims: W1 M1, or questions why: data-size. By default all claims.",
    ),
]
ScaleName = Annotated[
    str, typer.Option(metavar="laptop|gpu|paper", help="Size of the models and their data.")
]
Seeds = Annotated[
    int, typer.Option(min=1, max=100, help="How many seeds each system is trained with.")
]
Data = Annotated[
    Path | None,
    typer.Option(envvar="HEADWISE_DATA", help="Folder with the data, see docs/claims.md."),
]
Runs = Annotated[Path, typer.Option(help="Folder in which runs are trained.")]
Evidence = Annotated[Path, typer.Option(help="Folder in which results are kept.")]
_RUNS, _EVIDENCE = Path("runs/claims"), Path("evidence")
_PLANNED = ("", "runs", "tries", "steps", "s/step", "min/run", "min", "left")


@claims.callback(invoke_without_command=True)
def listing(
    context: typer.Context, scale: ScaleName = "laptop", evidence: Evidence = _EVIDENCE
) -> None:
    """List the claims of the papers and what is known of them."""
    if context.invoked_subcommand is not None:
        return
    with clear_errors():
        at = _scale(scale)

        from headwise.claims.catalogue.declared import papers
        from headwise.claims.judging.judging import verdict_on

        silence()
        places = _places_to_read(evidence)
        console = Console()
        for paper in papers():
            console.print(paper.paper, style="underline", highlight=False, markup=False)
            table = Table(
                "id", "claim", "where", "confirmed if", "status", box=None, pad_edge=False
            )
            for name, claim in paper.claims.items():
                verdict = verdict_on(claim, at, places)
                told = (claim.says, claim.where, claim.confirmed_if, verdict.name_with_mark)
                table.add_row(Text(name, style="bold"), *map(Text, told))
            console.print(table)


@claims.command()
def run(
    ids: Ids = None,
    scale: ScaleName = "laptop",
    seeds: Seeds = 5,
    jobs: Annotated[int, typer.Option(metavar="N", help="Train N runs at a time.")] = 1,
    data: Data = None,
    runs: Runs = _RUNS,
    evidence: Evidence = _EVIDENCE,
    renew: Annotated[
        bool, typer.Option("--renew", help="Train again what the code computes otherwise today.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Train for all claims, without asking first.")
    ] = False,
) -> None:
    """Train the runs that claims lack and print the verdicts; a stopped run continues.

    Without an ID it says how long all of them take, and asks before it goes on.
    """
    with clear_errors("The same command goes on from here."):
        at = _scale(scale)
        _check_ids(ids, at)

        from headwise.claims.catalogue.needed import needed_runs
        from headwise.claims.runs.running import run_experiment, run_question
        from headwise.claims.runs.timing import measure_times
        from headwise.claims.why.questions import claims_and_questions
        from headwise.runs.planned import RunsFailed

        silence()
        places, console = _places(data, runs, evidence), Console()
        if ids and every:
            raise ValueError(
                f"--all is given with the claims {' '.join(ids)}, expected one of both"
            )
        asked, questions = claims_and_questions(ids or [], at)
        numbers = range(1, seeds + 1)
        if not ids and not every:
            _ask_for_all(needed_runs(asked, at), at, seeds, places)
        try:
            for name, needed in needed_runs(asked, at).items():
                run_experiment(at, name, needed, numbers, places, console, jobs=jobs, renew=renew)
                if needed.times:
                    measure_times(at, name, needed, places, console, renew=renew)
            for question in questions.values():
                run_question(question, numbers, places, console, jobs=jobs, renew=renew)
        except RunsFailed as error:
            print_error(f"{error}\nThe same command tries again.")
            raise typer.Exit(1) from None
        _print_verdicts(asked, at, places, console)
        _print_answers(questions.values(), places, console)


@claims.command()
def why(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Questions: data-size. By default all."),
    ] = None,
    scale: ScaleName = "laptop",
    evidence: Evidence = _EVIDENCE,
) -> None:
    """Print what is known of the questions why systems do worse; trains nothing."""
    with clear_errors():
        from headwise.claims.catalogue.declared import check_questions

        at = _scale(scale)
        check_questions(names or [], at)

        from headwise.claims.why.questions import find_questions

        silence()
        places = _places_to_read(evidence)
        _print_answers(find_questions(names or [], at).values(), places, Console())


@claims.command()
def plan(
    ids: Ids = None,
    scale: ScaleName = "laptop",
    seeds: Seeds = 5,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the seconds of a step where they are missing."),
    ] = False,
    data: Data = None,
    runs: Runs = _RUNS,
    evidence: Evidence = _EVIDENCE,
) -> None:
    """Say how long the runs of claims take, and how long those that are missing."""
    with clear_errors("The same command goes on from here."):
        at = _scale(scale)
        _check_ids(ids, at)

        from headwise.claims.catalogue.needed import Needed, needed_runs
        from headwise.claims.runs.planning import measure_seconds, plan_question, with_needs
        from headwise.claims.runs.planning import plan as planned_minutes
        from headwise.claims.why.questions import claims_and_questions

        silence()
        places, console = _places(data, runs, evidence), Console()
        asked, questions = claims_and_questions(ids or [], at)
        needed = with_needs(needed_runs(asked, at), at)
        if measure:
            for name, of in needed.items():
                measure_seconds(at, name, of, places, console)
            for question in questions.values():
                of = Needed({question.dataset: list(question.systems)}, {}, {}, [])
                measure_seconds(at, question.experiment, of, places, console)
        table = Table(box=None, pad_edge=False)
        for number, header in enumerate(_PLANNED):
            table.add_column(header, justify="right" if number else "left")
        rows = planned_minutes(needed, at, seeds, places)
        for question in questions.values():
            known = {(row.experiment, row.system) for row in rows}
            more = plan_question(question, seeds, places)
            rows += [row for row in more if (row.experiment, row.system) not in known]
        before = ""
        for row in rows:
            if row.experiment != before:
                table.add_row(Text(row.experiment, style="underline"))
                before = row.experiment
            table.add_row(
                *(row.system, f"{row.kept}/{row.runs}", str(row.tries)),
                *("–" if row.steps is None else f"{row.steps:,}", _number(row.seconds, 3)),
                *(_number(row.each, 1), _number(row.total, 1), _number(row.left, 1)),
            )
        total = sum(row.total or 0.0 for row in rows)
        left = sum(row.left or 0.0 for row in rows)
        unknown = sum(row.total is None for row in rows)
        console.print(table)
        console.print(
            f"{total:.0f} minutes on one core, {total / 120:.1f} hours on two; "
            f"of these {left:.0f} minutes are left"
            + (f"; {unknown} rows are not measured" if unknown else ""),
            highlight=False,
        )


@claims.command()
def page(
    output: Annotated[Path, typer.Option(help="File of the page.")] = Path("docs/claims.md"),
    evidence: Evidence = _EVIDENCE,
) -> None:
    """Write docs/claims.md and its pictures from what is kept."""
    with clear_errors():
        from headwise.claims.catalogue.declared import SCALES, papers
        from headwise.claims.judging.judging import verdict_on
        from headwise.claims.page.page import claims_page, write_page

        silence()
        places = _places_to_read(evidence, may_lack=False)
        of_papers = papers()
        verdicts: dict[tuple[str, Any], Any] = {
            (name, scale): verdict_on(claim, scale, places)
            for paper in of_papers
            for name, claim in paper.claims.items()
            for scale in SCALES
        }
        write_page(output, claims_page(of_papers, verdicts, places))
        print_path(Console(), "page", output)


def _ask_for_all(needed: "dict[str, Needed]", at: "Scale", seeds: int, places: "Places") -> None:
    """Says how long the runs take that all claims lack, and asks whether to begin.

    Raises:
        ValueError: there is nobody to ask.
    """
    import sys

    from headwise.claims.runs.planning import plan, with_needs

    rows = plan(with_needs(needed, at), at, seeds, places)
    minutes = sum(row.left or 0.0 for row in rows)
    unknown = sum(row.total is None and row.kept < row.runs for row in rows)
    if not minutes and not unknown:
        return  # all of them have been trained
    said = f"all claims at scale {at} take about {minutes / 60:.1f} hours on one core"
    said += f", and {unknown} systems whose time is not known" if unknown else ""
    if not sys.stdin.isatty():
        raise ValueError(
            f"{said}: name some, as in headwise claims run W1, or add --all to train for all; "
            f"headwise claims plan shows the minutes of each system"
        )
    typer.confirm(f"{said[0].upper()}{said[1:]}. Begin?", abort=True)


def _print_verdicts(
    asked: dict[str, Any], scale: "Scale", places: "Places", console: Console
) -> None:
    from headwise.claims.judging.judging import verdict_on

    for name, claim in asked.items():
        verdict = verdict_on(claim, scale, places)
        console.print(f"{name}: {verdict.name}", style="bold", highlight=False, markup=False)
        for finding in verdict.findings:
            parts = (finding.test, finding.figures, finding.difference, finding.kind)
            said = "; ".join(part for part in (*parts, finding.remark) if part)
            console.print(f"  {said}", highlight=False, markup=False, soft_wrap=True)


def _print_answers(questions: "Iterable[Question]", places: "Places", console: Console) -> None:
    from headwise.claims.why.answers import answer

    for question in questions:
        found = answer(question, places)
        said = f"{question.name}: {question.asks}"
        console.print(said, style="bold", highlight=False, markup=False, soft_wrap=True)
        for line in found.lines():
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _scale(name: str) -> "Scale":
    from headwise.claims.catalogue.declared import SCALES
    from headwise.messages import one_of

    if name not in SCALES:
        raise ValueError(f"--scale is {name!r}, {one_of(name, SCALES)}")
    return name


def _check_ids(ids: list[str] | None, at: "Scale") -> None:
    """Tells claims and questions that there are not, before PyTorch is imported."""
    from headwise.claims.catalogue.declared import check_asked

    check_asked(ids or [], at)


def _places(data: Path | None, runs: Path, evidence: Path) -> "Places":
    from headwise.claims.catalogue.experiments import Places

    return Places(data or Path("data"), runs, evidence)


def _places_to_read(evidence: Path, *, may_lack: bool = True) -> "Places":
    """Returns the folders that a command reads if it trains nothing.

    Args:
        evidence: the folder in which results are kept.
        may_lack: whether the default folder may be missing, as it may for the list of claims.

    Raises:
        FileNotFoundError: the folder is not there.
    """
    if not evidence.is_dir() and not (may_lack and evidence == _EVIDENCE):
        raise FileNotFoundError(
            f"--evidence is {str(evidence)!r}, expected a folder that is there: name it, or start "
            f"where it lies"
        )
    return _places(None, _RUNS, evidence)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
