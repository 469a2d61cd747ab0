"""Parameters that several commands share, and the parsing of lists separated by commas."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.messages import shown

imported: list[str] = []  # by `--import`, for the commands that are to be typed next


def _import(names: list[str] | None) -> list[str] | None:
    # At the end of the path, so that a folder named `datasets` does not hide the library.
    if names and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for name in names or []:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise typer.BadParameter(
                f"there is no module {name!r}, expected one of this folder or of a package that is "
                f"installed, without .py"
            ) from None
        imported.append(name)
    return names


RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or path of a .yaml file.")
]


def _changes(what: str) -> Any:
    told = f"Change {what}. May be given several times."
    return typer.Option("--set", metavar="KEY=VALUE", help=told)


Changes = Annotated[
    list[str] | None,
    _changes("a key of the recipe: training.max_steps=100"),
]
# A finished run reads some keys of its recipe again.
ChangesOfRun = Annotated[
    list[str] | None,
    _changes(
        "what the run reads again, keys of `data` and `evaluation`: evaluation.beam_size=1, or "
        "data.files.train=... of data that have moved"
    ),
]
ChangesOfUse = Annotated[
    list[str] | None,
    _changes(
        "a key of `evaluation`, the only ones that are read: evaluation.beam_size=1 for "
        "translation, evaluation.temperature=0.7 for texts and images"
    ),
]
Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=_import,
        help="Import a module, of this folder too, before the recipe is read: it may name classes "
        "of it as MODULE:CLASS. May be given several times.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document in place of text, and progress to standard error."
    ),
]
Part = Annotated[
    str,
    typer.Option(
        metavar="train|validation|test|NAME",
        help="Part of the data; NAME is that of a further test set.",
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run, which contains model/.")
]


def parse_names(option: str, text: str | None) -> list[str]:
    """Returns the names in the text of an option; none without a text."""
    names = _split(text or "")
    if len(set(names)) < len(names):
        raise ValueError(
            f"{option} is {shown(text or '')}, expected different names, separated by commas"
        )
    return names


def parse_seeds(text: str) -> list[int]:
    """Returns the numbers in the text of `--seeds`."""
    from headwise.settings import LARGEST_SEED

    try:
        seeds = [int(seed) for seed in _split(text)]
    except ValueError:
        seeds = []
    are_different = len(set(seeds)) == len(seeds) > 0
    if not are_different or not 0 <= min(seeds) <= max(seeds) <= LARGEST_SEED:
        raise ValueError(
            f"--seeds is {shown(text)}, expected different whole numbers from 0 and below 2^32, "
            f"separated by commas: 1,2,3"
        )
    return seeds


def parse_lengths(text: str | None, default: dict[str, int]) -> dict[str, int]:
    """Returns a length for each stack of the task's model."""
    if text is None:
        return default
    try:
        numbers = [int(number) for number in _split(text)]
    except ValueError:
        numbers = []
    if len(numbers) != len(default) or min(numbers) < 1:
        expected = ",".join(str(length) for length in default.values())
        what = " and ".join(default)
        raise ValueError(
            f"--lengths is {shown(text)}, expected the lengths of the {what}, separated by commas: "
            f"{expected}"
        )
    return dict(zip(default, numbers, strict=True))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
