"""The commands of `headwise`. Each is thin: the library does the work."""

import sys
from pathlib import Path

import typer

from headwise.cli.curves import curve
from headwise.cli.experiments import compare, evaluate, train
from headwise.cli.explaining import analyse, explore
from headwise.cli.inspecting import cost, keys, recipes
from headwise.cli.using import enhance, generate, translate

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Train, compare and use systems that papers propose for the heads of multi-head "
    "attention, in place of concatenating them.",
    epilog="A recipe is a YAML file, or the name of a recipe that `headwise recipes` lists.",
    pretty_exceptions_show_locals=False,
)


@app.callback()
def start() -> None:
    """Make files of the current folder importable, so that recipes can name systems in them."""
    # At the end of the path, so that a folder named `datasets` does not hide the library.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


# In the order in which `headwise --help` lists them.
for command in (
    *(recipes, keys, cost),
    *(compare, train, evaluate, curve, analyse, explore),
    *(translate, generate, enhance),
):
    app.command()(command)
