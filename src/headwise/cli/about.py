"""The commands that train nothing: recipes, their keys and their cost."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option

from headwise.cli.app import Changes, Import, Json, command, parse_names, print_json
from headwise.messages import shown
from headwise.training.watching import say

if TYPE_CHECKING:
    from headwise.analysis.cost import Cost


@command("Train", "headwise recipes lm-pydoc")
def recipes(
    name: Annotated[str | None, Argument(help="A recipe, or a part of its name.")] = None,
    papers: Annotated[bool, Option("--papers", metavar="", help="List the papers' own.")] = False,
    keys: Annotated[str | None, Option(metavar="TASK|SYSTEM", help="List its keys.")] = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """List the recipes that come with headwise by task, or print one to start your own from.

    Those of --papers have the settings of the papers, or data that are not here. If a part of a
    name or a task fits several recipes, they are listed. --keys lists the keys of a task's recipes
    (translation), or the options of a system, the settings of its rule and its ablations (moa).
    """
    if keys is not None:
        from headwise.recipes.keys import keys_of

        _print_rows(("key", "default", "meaning"), keys_of(keys), as_json)
        return

    from headwise.recipes.document import listed_recipes, read_document, shipped_recipes

    listed = [each for each in listed_recipes() if name or each.is_offline is not papers]
    fitting = [each for each in listed if not name or name in each.name or name in each.task]
    if name is None or (len(fitting) > 1 and name not in shipped_recipes()):
        _print_rows(("recipe", "task", "a run", "systems", "what it is"), fitting, as_json)
        if name is None and not papers and not as_json:
            others = "--papers lists those of the papers, headwise recipes NAME prints one"
            say(Console(stderr=True), f"All run offline; {others}.")
        return
    alone = fitting[0].name if len(fitting) == 1 else name
    document = read_document(alone)  # which says what is wrong, also of a file
    if as_json:
        print_json(document)
    else:
        text = shipped_recipes().get(alone) or Path(alone).read_text(encoding="utf-8")
        typer.echo(text, nl=False)


def _print_rows(columns: tuple[str, ...], rows: list[Any], as_json: bool) -> None:
    """Prints the fields of rows; in a pipe each is one line, unless COLUMNS says how wide it is."""
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    table = Table(Column(columns[0], style="bold", overflow="fold"), *columns[1:], box=None)
    table.pad_edge = False
    for row in rows:
        table.add_row(*(Text(str(field)) for field in row[: len(columns)]))
    Console(width=1000 if is_free else None).print(table)


@command("Train", "headwise cost lm-pydoc --systems standard,moa")
def cost(
    recipes: Annotated[
        list[str] | None, Argument(metavar="RECIPE", show_default="interface-strings")
    ] = None,
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

    asked, named = parse_names("--systems", systems), recipes or ["interface-strings"]
    for name in named:
        check_names(name, asked, changes=changes or [])

    from headwise.analysis.cost import model_cost
    from headwise.recipes.recipe import load_recipe, task_class

    document = []
    for file in [load_recipe(name, changes or []) for name in named]:
        file.check_comparable()
        task, name = task_class(file.recipe.task), Path(file.name).stem
        dataset = None if file.has_data else file.dataset_names[0]
        systems_of = {of: file.system(of, dataset) for of in asked or file.system_names}
        counted = _lengths(lengths, task.cost_lengths(file.recipe))
        costs = {
            of: model_cost(task.config(recipe), counted)
            for of, recipe in (systems_of or {"model": file.recipe}).items()
        }
        if not as_json:
            _print_costs(name, counted, costs)
        in_json = {of: _in_json(cost) for of, cost in costs.items()}
        document.append({"recipe": name, "lengths": counted, "systems": in_json})
    if as_json:
        print_json({"recipes": document})


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


def _in_json(cost: "Cost") -> dict[str, Any]:
    parameters = {**cost.parameters._asdict(), "total": cost.parameters.total}
    return {**cost._asdict(), "parameters": parameters}


def _lengths(text: str | None, default: dict[str, int]) -> dict[str, int]:
    """Returns a length for each stack of the task's model."""
    if text is None:
        return default
    numbers = [int(each) if each.strip().isdecimal() else 0 for each in text.split(",")]
    if len(numbers) != len(default) or min(numbers) < 1:
        raise ValueError(
            f"--lengths is {shown(text)}, expected the lengths of the {' and '.join(default)}, "
            f"separated by commas: {','.join(map(str, default.values()))}"
        )
    return dict(zip(default, numbers, strict=True))
