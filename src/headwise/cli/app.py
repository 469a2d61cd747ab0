"""Shared code of the commands: the app, clear errors, options, and printing."""

import functools
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer import Option

from headwise import __version__
from headwise.messages import shown
from headwise.training.console import say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Train, compare and use systems that papers propose for the heads of multi-head "
    "attention, in place of concatenating them.",
    epilog="A recipe is a YAML file, or the name of a recipe that `headwise recipes` lists.",
    rich_markup_mode="rich",  # rich.markdown would double the time of `headwise --help`
    pretty_exceptions_show_locals=False,
)
imported_modules: list[str] = []  # those of `--import`, which the processes of a command import too
GOES_ON = "The same command resumes from here."


def command(panel: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a function a command of the app, whose errors are clear.

    Args:
        panel: the heading under which `headwise --help` lists it.
        example: the last line of its help.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            with clear_errors(GOES_ON if panel == "Train" else ""):
                function(**arguments)

        paragraphs = (function.__doc__ or "").split("\n\n")  # each is wrapped by the terminal
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        app.command(help=text, rich_help_panel=panel, epilog=f"Example: {example}")(run)
        return run

    return register


@contextmanager
def clear_errors(when_stopped: str = "") -> Iterator[None]:
    """Prints an error of the user as a message; a bug, here or in one's own module, is raised."""
    try:
        yield
    except KeyboardInterrupt as stop:  # as `Interrupted` of the trainer is
        say(Console(stderr=True), f"{str(stop) or 'stopped'}. {when_stopped}".strip())
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader of our output has closed it
        raise typer.Exit(0) from None
    except (ValueError, OSError) as error:
        files = {getattr(sys.modules.get(name), "__file__", "") for name in imported_modules}
        if files & {frame.filename for frame in traceback.extract_tb(error.__traceback__)}:
            raise  # whoever has written the module needs the traceback
        fail(f"{error}{_cache_hint(error)}", status=2)


def _cache_hint(error: Exception) -> str:
    """The way out where the cache of `datasets` cannot be written, as in many containers."""
    datasets, file = sys.modules.get("datasets"), getattr(error, "filename", None)
    if datasets is None or not isinstance(file, str):
        return ""
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    if not (cache.is_relative_to(file) or Path(file).is_relative_to(cache)):
        return ""
    return f". The cache of datasets is {cache}; set HF_DATASETS_CACHE to a folder to write to"


def fail(text: str, *, status: int) -> NoReturn:
    """Prints an error to standard error, and ends the command."""
    say(Console(stderr=True), f"error: {text}", style="red")
    raise typer.Exit(status) from None


def print_next(console: Console, run: Path, *names: str) -> None:
    """Prints the commands that look into a finished run."""
    purposes = {"analyse": "what its heads do", "explore": "watch it at work"}
    folder = shlex.quote(str(run)) + "".join(f" --import {name}" for name in imported_modules)
    for name in names or purposes:
        say(console, f"{purposes[name]}: headwise {name} {folder}")


def print_json(document: Any) -> None:
    """Prints the result of a command as one JSON document, in which NaN and infinity are null."""
    from pydantic import TypeAdapter

    typer.echo(TypeAdapter(Any).dump_json(document, indent=1, fallback=str))


def command_line() -> str:
    """Returns the command as the user typed it, which pages show."""
    return shlex.join(["headwise", *sys.argv[1:]])


def parse_names(option: str, text: str | None) -> list[str]:
    """Returns the names in the text of an option, separated by commas; none without a text."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if len(set(names)) < len(names):
        raise ValueError(f"{option} is {shown(text)}, expected different names between commas")
    return names


def _import(names: list[str] | None) -> list[str] | None:
    # At the end of the path, so that a folder named `datasets` does not hide the library.
    if names and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for name in names or []:
        try:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ModuleNotFoundError(name=name)
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports another that is not
            raise typer.BadParameter(
                f"there is no module {shown(name)}, expected one of this folder or of a package "
                f"that is installed, without .py"
            ) from None
        imported_modules.append(name)
    return names


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"headwise {__version__}")
        raise typer.Exit()


@app.callback()
def _start(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", metavar="", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Handles the options before the name of a command."""
    name, processes = context.invoked_subcommand, os.environ.get("WORLD_SIZE", "1")
    if processes != "1" and name != "train":
        raise typer.BadParameter(
            f"torchrun starts {processes} processes of headwise {name}, expected headwise train; "
            f"start this command by itself"
        )


_SET = "Change a key of the recipe; of a finished run, of data or evaluation. May be repeated."
Changes = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=_SET)]
_IMPORT = "Import a module, of this folder too, whose classes the recipe names. May be repeated."
Import = Annotated[
    list[str] | None, Option("--import", metavar="MODULE", callback=_import, help=_IMPORT)
]
_JSON = "Print one JSON document in place of text, and progress to standard error."
Json = Annotated[bool, Option("--json", metavar="", help=_JSON)]
