"""The command that puts finished runs along a number of their recipes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.cli.parameters import Trust
from headwise.cli.printing import clear_errors, print_path, silence


def curve(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Folders of finished runs or of comparisons."),
    ],
    over: Annotated[
        str,
        typer.Option(metavar="KEY", help="Key of the recipes with a number: data.train_fraction."),
    ],
    score: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of a score, or `validation loss`.",
            show_default="the first score",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File of the page.", show_default="curve.html in the first folder"),
    ] = None,
    trust: Trust = False,
) -> None:
    """Draw the score of systems against a key in which their recipes differ.

    There is a line for each system, and a table with the number of trained parameters and the
    steps to the best validation loss. Seeds give the intervals.
    """
    with clear_errors():
        from headwise.experiment.run_folder import check_holds_runs

        for folder in runs:
            check_holds_runs(folder)

        from headwise.analysis.score_curve import score_curve
        from headwise.experiment.gathering import gather_runs
        from headwise.files import write_text
        from headwise.report.score_curve import curve_headers, curve_rows, render_curve

        silence()
        found = score_curve(over, gather_runs(runs, over), score)
        console = Console()
        table = Table(box=None, pad_edge=False)
        for number, header in enumerate(curve_headers(found)):
            table.add_column(header, justify="left" if number == 0 else "right")
        for row in curve_rows(found):
            table.add_row(*map(Text, row))
        console.print(table)
        page = output or runs[0] / "curve.html"
        write_text(page, render_curve(found))
        print_path(console, "page", page)
