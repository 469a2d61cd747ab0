"""What a user asks for on the command line: the runs, and the input that their models read."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.experiment.run_folder import RECIPE

if TYPE_CHECKING:
    from headwise.report.explorer.inputs.source import Source


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
            f"{last} is not a folder, expected one with {RECIPE}, of a finished run; if it is a "
            f"text, give it by --text"
        )
    return [Path(each) for each in first], last


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):  # too long for a name, or with characters that no name has
        return False


def asked_source(
    last: str | None,
    text: str | None,
    file: Path | None,
    item: int | None,
    part: str,
    target: str | None,
) -> "Source":
    """Returns the input that a user asks for.

    Args:
        last: the text behind the folders.
        text, file, item, part, target: the options.

    Raises:
        ValueError: there are several inputs.
    """
    from headwise.report.explorer.inputs.source import Source

    given = {"TEXT": last, "--text": text, "--input": file, "--item": item}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are given, expected one of them: one input")
    return Source(
        text=text if last is None else last,
        target=target,
        file=file,
        part=part,
        item=item or 0,
    )
