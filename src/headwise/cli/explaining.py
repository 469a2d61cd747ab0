"""The commands that look into finished runs: their scores over a key, what their heads do."""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.cli.parameters import ChangesOfRun, ChangesOfUse, Import, Json, Part
from headwise.cli.printing import clear_errors, command_line, print_json, print_path, silence


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
    modules: Import = None,
) -> None:
    """Draw the score of systems against a key in which their recipes differ.

    There is a line for each system, and a table with the number of trained parameters and the
    steps to the best validation loss. Seeds give the intervals.
    """
    with clear_errors():
        from headwise.analysis.score_curve import score_curve
        from headwise.files import write_text
        from headwise.report.score_curve import curve_headers, curve_rows, render_curve
        from headwise.runs.folder import check_can_be_written
        from headwise.runs.reading import gather_runs

        silence()
        page = (output or runs[0] / "curve.html").expanduser()
        check_can_be_written(page)
        found = score_curve(over, gather_runs(runs, over), score)
        console = Console()
        table = Table(box=None, pad_edge=False)
        for number, header in enumerate(curve_headers(found)):
            table.add_column(header, justify="left" if number == 0 else "right")
        for row in curve_rows(found):
            table.add_row(*map(Text, row))
        console.print(table)
        write_text(page, render_curve(found))
        print_path(console, "page", page)


class Level(StrEnum):
    """How much is ablated, see `headwise.analysis.ablations.declared`."""

    none = "none"
    model = "model"
    units = "units"
    all = "all"


def analyse(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...",
            help="Folders of finished runs on the same data, which are shown side by side. Or, "
            "with --text, folders of models of transformers, or names on the Hugging Face hub.",
        ),
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For models of no run: a text file with an item in each line. A translation "
            "model reads source, tab, target; a classifier text, tab, class.",
        ),
    ] = None,
    part: Part = "test",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Other data in place of a part, as for `headwise evaluate`.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Run to which differences are given, with 95% intervals."),
    ] = None,
    ablations: Annotated[
        Level,
        typer.Option(
            help="What is changed to see what it is worth: model, all modules of a system at once; "
            "units, each unit of each module removed too; all, each left alone too; or none. The "
            "slowest part."
        ),
    ] = Level.units,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for analysis.html and analysis.json.", show_default="MODEL"),
    ] = None,
    changes: ChangesOfRun = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Write a page on what the heads of models do: entropy, load, tokens, ablations.

    A stopped analysis of a run continues where it was stopped.
    """
    with clear_errors("" if text else "The same command goes on from here."):
        from headwise.report.analysing import Request, analyse_runs
        from headwise.report.analysis_page.page import PAGE

        silence()
        console = Console(stderr=as_json)
        folder = (output or folder_for_pages(runs[0])).expanduser()
        request = Request(runs, part, against, data, ablations.value, changes or [], text)
        record = analyse_runs(request, folder, command_line(), console)
        if as_json:
            print_json({"page": folder / PAGE, **record.model_dump()})
            return
        for finding in record.findings:
            console.print(finding, highlight=False, markup=False)
        print_path(console, "analysis", folder / PAGE)


def explore(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [TEXT]",
            help="Folders of finished runs of one task, which are shown side by side, and the text "
            "that their models read; by default it is the first item of the test part. Or folders "
            "of models of transformers, or the name of one on the Hugging Face hub.",
        ),
    ],
    text: Annotated[
        str | None, typer.Option(help="The text, if it could be taken for a folder.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A text file, an image or a sound, to read."),
    ] = None,
    item: Annotated[
        int | None,
        typer.Option(min=0, help="Number of an item of the data, from 0.", show_default="0"),
    ] = None,
    part: Part = "test",
    target: Annotated[
        str | None,
        typer.Option(
            help="For translation: what the decoder reads.",
            show_default="the model's own translation",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="HTML file to write.", show_default="MODEL/explore.html")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Serve the page to this machine instead of writing it: there a text can be typed, "
            "and heads or experts removed. Ctrl-C ends it.",
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of --serve; 0 takes a free one.")
    ] = 8765,
    changes: ChangesOfUse = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Write a page on which the heads of a model are seen at work on one input, or serve it."""
    with clear_errors():
        import tempfile
        import webbrowser

        from headwise.report.explorer.inputs import Source
        from headwise.report.explorer.page import write_page
        from headwise.report.explorer.recording import Explorer
        from headwise.report.explorer.server import ExplorerServer
        from headwise.runs.folder import check_can_be_written

        silence()
        runs, last = split_arguments(arguments)
        if serve and output is not None:
            raise ValueError("--serve writes no file; leave out --serve or --output")
        if serve and as_json:
            raise ValueError("--serve has no result to print; leave out --serve or --json")
        check_one_input({"TEXT": last, "--text": text, "--input": source, "--item": item})
        given = Source(text if last is None else last, target, source, part, item or 0)
        page = (output or folder_for_pages(runs[0]) / "explore.html").expanduser()
        explorer = Explorer(runs, given, changes or [])
        if not serve:
            check_can_be_written(page)
        with Console(stderr=True).status("The models read the input."):
            payload = explorer.record(served=serve, command=command_line())
        if not serve:
            write_page(payload, page)
            if as_json:
                print_json({"page": page})
            else:
                print_path(Console(), "page", page)
            if open_page:
                webbrowser.open(page.resolve().as_uri())
            return
        with (
            ExplorerServer(payload, explorer.answer, port) as server,
            tempfile.TemporaryDirectory() as folder,
        ):
            print_path(Console(), "served until Ctrl-C", server.address)
            if open_page:
                # Everybody on the machine can read a browser's arguments: the token is in a file.
                page = Path(folder) / "explore.html"
                redirection = f'<meta http-equiv="refresh" content="0; url={server.address}">'
                page.write_text(redirection, encoding="utf-8")
                webbrowser.open(page.as_uri())
            server.run()


def folder_for_pages(model: Path) -> Path:
    """Returns the folder of a model, or this one for a name on the hub."""
    return model if model.is_dir() else Path()


def split_arguments(arguments: Sequence[str]) -> tuple[list[Path], str | None]:
    """Divides folders of runs from the text behind them.

    Args:
        arguments: folders, at least one; the last may be a text, if it is no folder.

    Raises:
        ValueError: the last looks like a folder that there is not.

    >>> split_arguments(["runs", "The file is open."])
    ([PosixPath('runs')], 'The file is open.')
    """
    *first, last = arguments
    if not first or (last and _is_folder(last)):
        return [Path(each) for each in arguments], None
    if os.sep in last and not any(letter.isspace() for letter in last):
        raise ValueError(
            f"{last} is not a folder, expected one with recipe.yaml, of a finished run; if it is a "
            f"text, give it by --text"
        )
    return [Path(each) for each in first], last


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):  # too long for a name, or with characters that no name has
        return False


def check_one_input(given: Mapping[str, object]) -> None:
    """Raises `ValueError` if a user gives several inputs: names of options to their values."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are given, expected one of them: one input")
