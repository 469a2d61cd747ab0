"""The commands that look into finished runs: what their heads do."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headwise.cli.parameters import Changes
from headwise.cli.printing import clear_errors, command_line, print_note, print_path, silence


def analyse(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of finished runs on the same data, which are shown side by side.",
        ),
    ],
    part: Annotated[
        str,
        typer.Option(
            help="Part of the data: train, validation, test, or the name of a further test set."
        ),
    ] = "test",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Other data in place of a part, as for `headwise evaluate`.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Give differences to this run, with their intervals."),
    ] = None,
    ablations: Annotated[
        str,
        typer.Option(
            help="What is removed to see what it is worth: none; model, what is changed in all "
            "layers at once; or all, each unit of each layer too. The slowest part."
        ),
    ] = "all",
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for analysis.html and analysis.json.", show_default="RUN"),
    ] = None,
    changes: Changes = None,
) -> None:
    """Write a page on what the heads of finished runs do: how sure, how even, on what, worth what.

    A stopped analysis continues where it was stopped.
    """
    with clear_errors("The same command goes on from here."):
        from headwise.inspection.analysing import PAGE, analyse_runs

        silence()
        console = Console()
        folder = output or runs[0]
        record = analyse_runs(
            runs,
            part,
            folder,
            command_line(),
            console,
            against=against,
            data=data,
            changes=changes or [],
            note=print_note,
        )
        for sentence in record.findings:
            console.print(sentence, highlight=False, markup=False)
        print_path(console, "analysis", folder / PAGE)
