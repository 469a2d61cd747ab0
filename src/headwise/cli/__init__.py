"""The commands of `headwise`. Each is thin: the library does the work."""

import typer

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
    """Nothing is set for all commands; without this, a single command would have no name."""


# In the order in which `headwise --help` lists them.
for command in (
    *(recipes, keys, cost),
    *(compare, train, evaluate, analyse, explore),
    *(translate, generate, enhance),
):
    app.command()(command)
