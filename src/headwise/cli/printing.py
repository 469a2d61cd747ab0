"""What the commands print besides results: errors, paths and the next commands."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from headwise.cli.parameters import imported

_WIDE = 1000  # columns


@contextmanager
def clear_errors(when_stopped: str = "") -> Iterator[None]:
    """Prints an error of the user as a message, not as a traceback."""
    from headwise.training.interrupted import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        Console(stderr=True).print(f"{str(stop) or 'stopped'}. {when_stopped}", highlight=False)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader of our output has closed it
        raise typer.Exit(0) from None
    except (ValueError, OSError) as error:
        print_error(_said_by(error))
        raise typer.Exit(2) from None


def _said_by(error: ValueError | OSError) -> str:
    """Returns the message of an error.

    For an error of the operating system it is the path of the file and the reason, without the
    number that Python puts before it.
    """
    path = getattr(error, "filename", None)
    reason = getattr(error, "strerror", None)
    if path is None or reason is None or not str(error).startswith("[Errno"):
        return str(error)
    return f"{path}: cannot be read or written ({reason})"


def print_error(text: str) -> None:
    """Prints an error to standard error."""
    Console(stderr=True).print(
        f"error: {text}", style="red", highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def printing_console() -> Console:
    """Returns the console that prints tables.

    In a pipe or a file each row is one line, however long, unless COLUMNS says how wide lines are.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_WIDE if is_free else None)


def print_json(document: Any) -> None:
    """Prints what a command found as one JSON document.

    Numbers that are not finite are null, since JSON has no NaN.
    """
    from pydantic import TypeAdapter

    typer.echo(TypeAdapter(Any).dump_json(document, indent=1, fallback=str))


def print_path(console: Console, what: str, path: Path | str) -> None:
    """Prints where something was written, in one line that can be copied."""
    _print_line(console, f"{what}: {path}")


def print_next_commands(console: Console, run: Path) -> None:
    """Prints the commands that look into a finished run, each in one line that can be copied."""
    folder = shlex.quote(str(run)) + "".join(f" --import {name}" for name in imported)
    for what, command in (("what its heads do", "analyse"), ("watch it at work", "explore")):
        _print_line(console, f"{what}: headwise {command} {folder}")


def _print_line(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def command_line() -> str:
    """The command as the user typed it, for pages that say how they were made."""
    return shlex.join(["headwise", *sys.argv[1:]])


def silence() -> None:
    """Silences the progress bars and the advice of other libraries."""
    from headwise.training.progress import silence_libraries

    silence_libraries()
