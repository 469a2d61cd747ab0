"""The commands that train nothing: recipes, their keys and their cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from headwise.cli.parameters import Changes, Import, Json, parse_lengths, parse_names
from headwise.cli.printing import clear_errors, print_json, printing_console

if TYPE_CHECKING:
    from headwise.analysis.papers import Paper
    from headwise.models.config import TransformerConfig
    from headwise.recipes.listing import Listed


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Print the file of this recipe, or of the only one with this in its name or task; "
            "if there are several, list them."
        ),
    ] = None,
    papers: Annotated[
        bool,
        typer.Option(
            "--papers", help="List those with the papers' settings, and others with their data."
        ),
    ] = False,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="TASK|SYSTEM",
            help="List the keys of a task's recipes, or the options of a system, with their "
            "defaults: translation, moa.",
        ),
    ] = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """List the recipes that come with headwise by task, or print one to start your own from."""
    with clear_errors():
        if keys is not None:
            _print_keys(keys, as_json)
            return
        from headwise.recipes.document import read_document, shipped_recipes
        from headwise.recipes.listing import listed_recipes

        listed = listed_recipes()
        if name is None:
            _print_recipes([each for each in listed if each.is_offline is not papers], as_json)
            if not papers and not as_json:
                Console(stderr=True).print(
                    "All run offline. --papers lists those with the papers' settings, "
                    "headwise recipes NAME prints one.",
                    highlight=False,
                )
            return
        found = [each for each in listed if name in each.name or name in each.task]
        alone = name if name in shipped_recipes() else found[0].name if len(found) == 1 else ""
        if found and not alone:
            _print_recipes(found, as_json)
            return
        document = read_document(alone or name)  # which says what is wrong, also of a file
        if as_json:
            print_json(document)
        else:
            text = shipped_recipes()[alone] if alone else Path(name).read_text(encoding="utf-8")
            typer.echo(text, nl=False)


def _print_recipes(listed: "Sequence[Listed]", as_json: bool) -> None:
    """Prints what is known of recipes in columns; what they are, below where there is no room."""
    if as_json:
        print_json([each._asdict() for each in listed])
        return
    console = printing_console()
    rows = [(("recipe", "task", "a run", "systems"), "what it is")]
    rows += [
        ((each.name, each.task, each.budget, str(each.systems)), each.description)
        for each in listed
    ]
    widths = [max(map(len, column)) for column in zip(*(cells for cells, _ in rows), strict=True)]
    longest = max(len(description) for _, description in rows)
    is_wide = console.width >= sum(widths) + 2 * len(widths) + longest
    for cells, description in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        text = Text(f"{line}  {description}" if is_wide else line.rstrip())
        text.stylize("bold", 0, len(cells[0]))
        console.print(text, soft_wrap=True)
        if not is_wide and cells[0] != "recipe":
            console.print(Padding(Text(description), (0, 0, 0, 2)))


def _print_keys(name: str, as_json: bool) -> None:
    from headwise.recipes.keys import keys_of

    found = keys_of(name)
    if as_json:
        print_json([key._asdict() for key in found])
        return
    # A key that is wider than its column goes on in the next line: no letter is left out.
    table = Table(Column("key", overflow="fold"), "default", "meaning", box=None, pad_edge=False)
    for key in found:
        table.add_row(Text(key.name, style="bold"), Text(key.default), Text(key.meaning))
    printing_console().print(table)


def cost(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE",
            help="Names of recipes, or paths of .yaml files.",
            show_default="interface-strings",
        ),
    ] = None,
    systems: Annotated[
        str | None, typer.Option(help="Systems of the recipes, separated by commas.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Number of tokens, frames or pixels to count multiply-accumulates for; for "
            "translation, those of source and target, separated by a comma.",
            show_default="the task's",
        ),
    ] = None,
    papers: Annotated[
        bool, typer.Option("--papers", help="Show the figures that the papers print beside ours.")
    ] = False,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Count the parameters and multiply-accumulates of a recipe's systems without training."""
    with clear_errors():
        from headwise.recipes.document import read_document

        asked = parse_names("--systems", systems)
        names_of_recipes = recipes or ([] if papers else ["interface-strings"])
        for recipe in names_of_recipes:
            read_document(recipe)  # a wrong name is told before PyTorch is loaded

        from headwise.recipes.recipe import load_recipe, task_class
        from headwise.report.cost import cost_table

        files = [load_recipe(recipe, changes or []) for recipe in names_of_recipes]
        console = Console(quiet=as_json)
        document: dict[str, Any] = {}
        if papers:
            from headwise.analysis.papers import published_figures
            from headwise.report.cost import papers_summary, papers_tables

            figures = published_figures()
            document["papers"] = [_printed_and_ours(paper) for paper in figures]
            for table in papers_tables(figures):
                console.print(table)
            console.print(papers_summary(figures), highlight=False)
        for file in files:
            file.check_comparable()
            names = asked or file.system_names
            task = task_class(file.recipe.task)
            dataset = None if file.has_data else file.dataset_names[0]
            configs = {name: task.config(file.system(name, dataset)) for name in names}
            configs = configs or {"model": task.config(file.recipe)}
            counted = parse_lengths(lengths, task.cost_lengths(file.recipe))
            name = Path(file.name).stem
            if not as_json:
                console.print(cost_table(name, configs, counted))
                continue
            costs = {system: _cost(config, counted) for system, config in configs.items()}
            found = {"recipe": name, "lengths": counted, "systems": costs}
            document.setdefault("recipes", []).append(found)
        if as_json:
            print_json(document)


def _cost(config: "TransformerConfig", lengths: Mapping[str, int]) -> dict[str, Any]:
    from headwise.analysis.cost import model_cost

    cost = model_cost(config, lengths)
    parameters = {**cost.parameters._asdict(), "total": cost.parameters.total}
    return {**cost._asdict(), "parameters": parameters}


def _printed_and_ours(paper: "Paper") -> dict[str, Any]:
    figures = [{**vars(figure), "agrees": figure.agrees} for figure in paper.figures]
    return {**vars(paper), "figures": figures}
