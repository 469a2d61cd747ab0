"""The commands of `headwise`. Each is thin: the library does the work."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headwise import __version__
from headwise.cli.experiments import compare, evaluate, train
from headwise.cli.explaining import analyse, curve, explore
from headwise.cli.inspecting import cost, recipes
from headwise.cli.using import predict

__all__ = ["app"]


class _PlainFlags:
    """Flags show no type in help: that they are `<bool>` tells nobody anything.

    Other options show what may stand behind them.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters


class _Command(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    pass


app = typer.Typer(
    cls=_Group,
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
_GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train": (recipes, cost, compare, train),
    "Look inside": (evaluate, curve, analyse, explore),
    "Use": (predict,),
}
_EXAMPLES = {  # the last line of `headwise COMMAND --help`
    "recipes": "headwise recipes lm-pydoc",
    "cost": "headwise cost lm-pydoc --systems standard,moa",
    "compare": "headwise compare lm-pydoc --systems standard,moa --seeds 1,2 --output runs/mine",
    "train": "headwise train lm-pydoc --system moa --set training.max_steps=100",
    "evaluate": "headwise evaluate runs/lm-pydoc-moa --part validation",
    "curve": "headwise curve runs/transfer-pydoc --over data.train_fraction",
    "analyse": "headwise analyse runs/lm-pydoc-moa --ablations model",
    "explore": 'headwise explore runs/lm-pydoc-moa "The with statement"',
    "predict": 'headwise predict runs/lm-pydoc-moa --text "The with statement"',
}
for group, commands in _GROUPS.items():
    for command in commands:
        example = f"Example: {_EXAMPLES[command.__name__]}"
        app.command(cls=_Command, rich_help_panel=group, epilog=example)(command)
app.command("analyze", cls=_Command, hidden=True)(analyse)  # as it is spelt elsewhere
