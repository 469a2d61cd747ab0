"""The commands that train nothing: recipes, their keys and their cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option

from headwise.cli.app import Changes, Import, Json, command, parse_names, parse_numbers, print_json
from headwise.training.watching import say

if TYPE_CHECKING:
    from headwise.analysis.cost import Cost


@command("Train", "headwise recipes lm-pydoc")
def recipes(
    name: Annotated[str | None, Argument(help="Print this recipe, to start your own from.")] = None,
    keys: Annotated[str | None, Option(metavar="TASK|SYSTEM", help="List its keys.")] = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """List the recipes that come with headwise, or print one to start your own from.

    --keys lists the keys of a task's recipes (translation), or the options of a system, the
    settings of its rule and its ablations (moa).
    """
    if keys is not None:
        from headwise.recipes.keys import keys_of

        found = keys_of(keys)
        if as_json:
            print_json([key._asdict() for key in found])
        else:
            defaults = ["" if key.default == "–" else f" Default: {key.default}" for key in found]
            whats = [key.meaning + default for key, default in zip(found, defaults, strict=True)]
            _print_rows([(key.name, what) for key, what in zip(found, whats, strict=True)])
        return

    from headwise.recipes.document import listed_recipes, read_document, shipped_recipes

    if name is not None:
        document = read_document(name)  # which says what is wrong, also of a file
        if as_json:
            print_json(document)
        else:
            text = shipped_recipes().get(name) or Path(name).read_text(encoding="utf-8")
            typer.echo(text, nl=False)
        return
    listed = listed_recipes()
    if as_json:
        print_json([each._asdict() for each in listed])
        return
    for title, is_offline in (
        ("These run offline:", True),
        ("\nThese have the papers' settings, or data that are not installed:", False),
    ):
        say(Console(), title, "bold")
        _print_rows(
            [
                (
                    each.name,
                    f"{each.task}, {each.budget}, {each.systems} systems: {each.description}",
                )
                for each in listed
                if each.is_offline is is_offline
            ]
        )
    say(Console(), "\nOne of them, to start your own from: headwise recipes NAME")


def _print_rows(rows: list[tuple[str, str]]) -> None:
    """Prints names and what they are beside them, in the width of the terminal."""
    table = Table(Column(style="bold", no_wrap=True), Column(), box=None, show_header=False)
    table.pad_edge = False
    for name, what in rows:
        table.add_row(Text(name), Text(what))
    Console().print(table)


@command("Train", "headwise cost lm-pydoc --systems standard,moa")
def cost(
    recipe: Annotated[str, Argument(metavar="RECIPE")] = "interface-strings",
    systems: Annotated[str | None, Option(help="Systems, separated by commas.")] = None,
    lengths: Annotated[
        str | None, Option(help="Positions to count for.", show_default="the task's")
    ] = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Count the parameters and multiply-accumulates of a recipe's systems without training.

    Multiply-accumulates are those of one forward pass over as many tokens, frames or pixels as
    --lengths says; for translation it has two numbers, of source and target, as 25,25.
    """
    from headwise.recipes.document import check_names

    asked = parse_names("--systems", systems)
    check_names(recipe, asked, changes=changes or [])

    from headwise.analysis.cost import model_cost
    from headwise.recipes.recipe import load_recipe, task_class

    file = load_recipe(recipe, changes or [])
    file.check_comparable()
    task, dataset = task_class(file.recipe.task), None if file.has_data else file.dataset_names[0]
    counted = task.cost_lengths(file.recipe)
    if lengths is not None:
        numbers = parse_numbers("--lengths", lengths)
        if len(numbers) != len(counted):
            wanted = ",".join(map(str, counted.values()))
            raise ValueError(
                f"--lengths is {lengths}, expected those of the {' and '.join(counted)}: {wanted}"
            )
        counted = dict(zip(counted, numbers, strict=True))
    recipes = {of: file.system(of, dataset) for of in asked or file.system_names}
    costs = {
        of: model_cost(task.config(each), counted)
        for of, each in (recipes or {"model": file.recipe}).items()
    }
    if as_json:
        systems_of = {
            of: each._asdict()
            | {"parameters": each.parameters._asdict() | {"total": each.parameters.total}}
            for of, each in costs.items()
        }
        print_json({"recipe": recipe, "lengths": counted, "systems": systems_of})
    else:
        _print_costs(recipe, counted, costs)


def _print_costs(name: str, lengths: dict[str, int], costs: dict[str, "Cost"]) -> None:
    """Prints a table of 80 columns."""
    from headwise.report.page import short

    table = Table(Column("system", style="bold", overflow="fold"), title=name, box=None)
    parts = ("embed-\ndings", "atten-\ntion", "routing", "feed-\nforward", "rest", "para-\nmeters")
    for header in (*parts, "linear\nMACs", "MACs"):
        table.add_column(header, justify="right", no_wrap=True)
    for system, cost in costs.items():
        numbers = (*cost.parameters, cost.parameters.total, cost.linear_macs, cost.macs)
        table.add_row(Text(system), *map(short, numbers))
    counted = [f"{length} positions in the {stack}" for stack, length in lengths.items()]
    table.caption = (
        f"MACs: {' and '.join(counted)}; the linear ones without the products of attention. Sizes "
        f"are those of the recipe: little data may give a smaller vocabulary."
    )
    table.caption_justify = "left"
    Console().print(table)
