"""The commands of `headwise`. Each is thin: the library does the work."""

from typing import Annotated

import typer

from headwise import __version__
from headwise.cli.claims import claims
from headwise.cli.curves import curve
from headwise.cli.experiments import compare, evaluate, train
from headwise.cli.explaining import analyse, explore
from headwise.cli.inspecting import cost, keys, recipes
from headwise.cli.using import enhance, generate, translate

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Train, compare and use systems that papers propose for the heads of multi-head "
    "attention, in place of concatenating them.",
    epilog="A recipe is a YAML file, or the name of a recipe that `headwise recipes` lists.",
    pretty_exceptions_show_locals=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"headwise {__version__}")
        raise typer.Exit()


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """What stands before the name of a command."""


# In the order in which `headwise --help` lists them.
for command in (
    *(recipes, keys, cost),
    *(compare, train, evaluate, curve, analyse, explore),
    *(translate, generate, enhance),
):
    app.command()(command)
app.add_typer(claims, name="claims")
