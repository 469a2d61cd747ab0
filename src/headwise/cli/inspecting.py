"""The commands that train nothing: recipes, their keys and their cost."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.cli.parameters import Changes, Trust, parse_lengths, parse_names
from headwise.cli.printing import clear_errors, print_notes


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print the file of this recipe.")] = None,
    trust: Trust = False,
) -> None:
    """List the recipes that come with headwise by task, or print one to start your own from."""
    with clear_errors():
        if name is not None:
            from headwise.recipe import load_recipe, shipped_recipes

            load_recipe(name)
            shipped = shipped_recipes()
            typer.echo(shipped.get(name) or Path(name).read_text(encoding="utf-8"), nl=False)
            return
        from headwise.recipe.catalogue import TASKS
        from headwise.recipe.shipped import listed_recipes

        table = Table(box=None, pad_edge=False, show_header=False)
        listed = listed_recipes()
        for task in TASKS:
            table.add_row(f"[underline]{task}")
            for recipe in listed:
                if recipe.task == task:
                    table.add_row(f"[bold]{recipe.name}", recipe.description)
        Console().print(table)


def keys(
    task: Annotated[str | None, typer.Argument(help="Name of a task: language-modelling.")] = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the keys of all tasks as one page: docs/keys.md."),
    ] = False,
) -> None:
    """List the keys that a recipe may have, with their defaults."""
    with clear_errors():
        from headwise.recipe.keys import keys_page, shared_sections, task_sections

        if markdown:
            typer.echo(keys_page(), nl=False)
            return
        console = Console()
        for section in task_sections(task) if task else shared_sections():
            table = Table("key", "default", "meaning", box=None, pad_edge=False)
            for key in section.keys:
                table.add_row(Text(key.name, style="bold"), Text(key.default), Text(key.meaning))
            console.print(Text(f"\n{section.title}", style="underline"), table)
        if task is None:
            from headwise.recipe.catalogue import TASKS

            console.print(f"\nMore: headwise keys TASK, one of {', '.join(TASKS)}", highlight=False)


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
    trust: Trust = False,
) -> None:
    """Count the parameters and multiply-accumulates of a recipe's systems without training."""
    with clear_errors():
        from headwise.analysis.cost import cost_table
        from headwise.recipe import load_recipe
        from headwise.recipe.catalogue import task_class

        console = Console()
        if papers:
            from headwise.analysis.papers.published import published_figures
            from headwise.analysis.papers.table import papers_summary, papers_tables

            figures = published_figures()
            for table in papers_tables(figures):
                console.print(table)
            console.print(papers_summary(figures), highlight=False)
        for recipe in recipes or ([] if papers else ["interface-strings"]):
            file = load_recipe(recipe, changes or [])
            print_notes(file)
            file.check_comparable()
            names = parse_names("--systems", systems) or file.system_names
            task = task_class(file.recipe.task)
            dataset = None if file.has_data else file.dataset_names[0]
            configs = {name: task.nominal_config(file.system(name, dataset)) for name in names}
            configs = configs or {"model": task.nominal_config(file.recipe)}
            counted = parse_lengths(lengths, task.cost_lengths(file.recipe))
            source = "" if lengths else task.macs_lengths_from
            console.print(cost_table(Path(recipe).stem, configs, counted, source))
