"""The commands that look into finished runs: what their heads do."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headwise.cli.parameters import ChangesOfRun, ChangesOfUse, Part, Trust, check_runs
from headwise.cli.printing import clear_errors, command_line, print_path, silence


class Level(str, Enum):
    """How much is ablated, see `headwise.analysis.behaviour.ablations.declared`."""

    none = "none"
    model = "model"
    units = "units"
    all = "all"


def analyse(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of finished runs on the same data, which are shown side by side.",
        ),
    ],
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
        typer.Option(help="Folder for analysis.html and analysis.json.", show_default="RUN"),
    ] = None,
    changes: ChangesOfRun = None,
    trust: Trust = False,
) -> None:
    """Write a page on what the heads of finished runs do: entropy, load, tokens, ablations.

    A stopped analysis continues where it was stopped.
    """
    with clear_errors("The same command goes on from here."):
        check_runs([*runs, *([against] if against else [])], changes)

        from headwise.analysis.behaviour.writing import PAGE
        from headwise.inspection.analysing import Request, analyse_runs

        silence()
        console = Console()
        folder = output or runs[0]
        request = Request(runs, part, against, data, ablations.value, changes or [])
        record = analyse_runs(request, folder, command_line(), console)
        for finding in record.findings:
            console.print(finding, highlight=False, markup=False)
        print_path(console, "analysis", folder / PAGE)


def explore(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [TEXT]",
            help="Folders of finished runs of one task, which are shown side by side, and the text "
            "that their models read; by default it is the first item of the test part.",
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
        Path | None, typer.Option(help="HTML file to write.", show_default="RUN/explore.html")
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
    trust: Trust = False,
) -> None:
    """Write a page on which the heads of a model are seen at work on one input, or serve it."""
    with clear_errors():
        import tempfile
        import webbrowser

        from headwise.files import check_can_be_written
        from headwise.inspection.exploring.asking import asked_source, split_arguments

        runs, last = split_arguments(arguments)
        check_runs(runs, changes, keys=("evaluation",))

        from headwise.inspection.exploring.page.html import write_page
        from headwise.inspection.exploring.recording import Explorer
        from headwise.inspection.exploring.server import ExplorerServer

        silence()
        if serve and output is not None:
            raise ValueError("--serve writes no file; leave out --serve or --output")
        given = asked_source(last, text, source, item, part, target)
        page = output or runs[0] / "explore.html"
        explorer = Explorer(runs, given, changes or [])
        if not serve:
            check_can_be_written(page, "--output")
        with Console(stderr=True).status("The models read the input."):
            payload = explorer.record(served=serve, command=command_line())
        if not serve:
            write_page(payload, page)
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
