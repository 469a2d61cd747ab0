"""The commands for training: compare and train, and before them recipes and cost."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option

from headwise.cli.app import (
    Changes,
    Import,
    Json,
    command,
    command_line,
    fail,
    imported_modules,
    parse_names,
    print_json,
    print_next,
)
from headwise.messages import shown
from headwise.training.console import say, silence_libraries

if TYPE_CHECKING:
    from headwise.analysis.cost import Cost
    from headwise.runs.compare import DatasetComparison

_TUNE = """Try these values of a key of `model` or `training` with every system, and train its seeds
    with the best for the validation loss. Several --tune: all combinations."""


@command("Train", "headwise compare lm-pydoc --systems standard,moa --seeds 1,2 --output runs/mine")
def compare(
    recipe: Annotated[
        str, Argument(metavar="RECIPE", help="Name of a recipe, or path of a .yaml file.")
    ] = "interface-strings",
    systems: Annotated[str | None, Option(help="Systems: a,b. The first is the baseline.")] = None,
    seeds: Annotated[str | None, Option(help="Train every system with each: 1,2,3.")] = None,
    datasets: Annotated[str | None, Option(help="Data sets of the recipe: a,b.")] = None,
    output: Annotated[
        Path | None, Option(help="Folder for runs and report.", show_default="runs/RECIPE")
    ] = None,
    jobs: Annotated[int, Option(min=1, metavar="N", help="Train N runs at a time.")] = 1,
    ray_address: Annotated[
        str | None, Option(metavar="ray://HOST:PORT", help="Train on the machines of a cluster.")
    ] = None,
    match: Annotated[
        Literal["parameters"] | None,
        Option(help="Give all systems as many parameters as the first, by their width."),
    ] = None,
    tune: Annotated[list[str] | None, Option(metavar="KEY=VALUE,VALUE", help=_TUNE)] = None,
    print_commands: Annotated[
        bool, Option("--print-commands", help="Print a command for each run, and train none.")
    ] = False,
    changes: Changes = None,
    modules: Import = None,
) -> None:
    """Train several systems under one budget and report which is better, and at what cost.

    You can stop it with Ctrl-C and start it again: finished runs are not trained again. The report
    is written whenever a run has ended. A run that fails leaves the others alone.
    """
    from headwise.recipes.document import check_names
    from headwise.settings import LARGEST_SEED

    system_names = parse_names("--systems", systems)
    dataset_names = parse_names("--datasets", datasets)
    numbers = [int(n) if n.isdecimal() else -1 for n in parse_names("--seeds", seeds)]
    if not all(0 <= number <= LARGEST_SEED for number in numbers):
        raise ValueError(
            f"--seeds is {shown(seeds)}, expected whole numbers from 0 to {LARGEST_SEED:,}, "
            f"separated by commas"
        )
    check_names(recipe, system_names, dataset_names, changes or [])

    from headwise.recipes.recipe import load_recipe
    from headwise.report.comparison import (
        PAGE,
        read_comparison,
        results_table,
        verdict,
        write_report,
    )
    from headwise.runs.compare import plan_comparison, run_comparison
    from headwise.runs.launching import Launcher, RunsFailed, cluster
    from headwise.runs.tuning import parse_grid

    silence_libraries()
    file = load_recipe(recipe, changes or [])
    system_names = system_names or file.system_names
    if not system_names:
        raise ValueError(f"recipe {recipe} names no systems, expected some under `systems`")
    numbers = numbers or file.recipe.seeds or [file.recipe.training.seed]
    folder = (output or Path("runs") / Path(recipe).stem).expanduser()
    console, comparisons = Console(stderr=print_commands), {}

    def write(comparison_folder: Path) -> None:
        comparisons[comparison_folder] = read_comparison(comparison_folder)
        write_report(comparison_folder, comparisons[comparison_folder])

    with cluster(ray_address) as ray:  # fails before the data are read
        planned = plan_comparison(
            file,
            system_names,
            numbers,
            folder,
            console,
            datasets=dataset_names or file.dataset_names,
            match=match is not None,
            grid=parse_grid(tune or []),
        )
        if print_commands:
            _print_commands(planned, folder, console)
            return
        launcher = Launcher(jobs, ray, imported_modules)
        try:
            runs = run_comparison(
                planned, folder, command_line(), console, launcher=launcher, write=write
            )
        except (KeyboardInterrupt, RunsFailed) as error:
            for comparison_folder in comparisons:
                say(console, f"report as far as it goes: {comparison_folder / PAGE}")
            if isinstance(error, KeyboardInterrupt):
                raise
            fail(str(error), status=1)
    for comparison_folder, comparison in comparisons.items():
        console.print(results_table(comparison), crop=False)
        say(console, verdict(comparison))
        say(console, f"report: {comparison_folder / PAGE}")
    print_next(console, runs[-1].folder)


def _print_commands(planned: "list[DatasetComparison]", folder: Path, console: Console) -> None:
    from headwise.runs.folder import locked
    from headwise.runs.process import train_command

    with locked(folder):
        runs = [run for each in planned for run in each.init_folders(each.next_runs(console))]
    waiting = [run.folder for run in runs if run.result() is None]
    for run_folder in waiting:
        _python_m, *arguments = train_command(run_folder, imported_modules)
        typer.echo(shlex.join(arguments))
    hint = "the same command resumes, and without --print-commands makes the report"
    say(console, f"{len(waiting)} commands; when they have ended, {hint}")


@command("Train", "headwise train lm-pydoc --system moa --set training.max_steps=100")
def train(
    recipe: Annotated[
        str, Argument(metavar="RECIPE|FOLDER", help="A recipe, or the folder of a run, to resume.")
    ],
    system: Annotated[str | None, Option(help="A system of the recipe.")] = None,
    dataset: Annotated[str | None, Option(help="A data set of the recipe.")] = None,
    output: Annotated[
        Path | None, Option(help="Folder for the run.", show_default="runs/RECIPE-SYSTEM")
    ] = None,
    changes: Changes = None,
    modules: Import = None,
) -> None:
    """Train one system and evaluate it. A stopped run continues where it was stopped.

    The results are in result.json of the run's folder. The exit status is 1 if the training has
    diverged: its validation loss is no number.
    """
    from headwise.recipes.document import check_names, shipped_recipes
    from headwise.runs.names import check_run

    is_run = recipe not in shipped_recipes() and Path(recipe).is_dir()
    if is_run:
        check_run(Path(recipe))
        options = {"--system": system, "--dataset": dataset, "--output": output, "--set": changes}
        if names := " and ".join(name for name, value in options.items() if value):
            raise ValueError(f"{recipe} is a run, which resumes as it is: leave out {names}")
    else:
        check_names(recipe, filter(None, [system]), filter(None, [dataset]), changes or [])

    from headwise.recipes.recipe import load_recipe
    from headwise.runs.folder import init_run_folder
    from headwise.runs.process import end_with_parent
    from headwise.runs.run import train_run
    from headwise.training.trainer import accelerator_for

    silence_libraries()
    end_with_parent()
    console, folder = Console(), Path(recipe)
    if not is_run:
        run_recipe = load_recipe(recipe, changes or []).system(system, dataset)
        parts = filter(None, [Path(recipe).stem, dataset, system or "model"])
        folder = (output or Path("runs") / "-".join(parts)).expanduser()
        processes = accelerator_for(run_recipe.training, folder)  # of torchrun, or this one
        with processes.main_process_first():
            if processes.is_main_process:
                init_run_folder(folder, run_recipe)
    result = train_run(folder, console)
    if result is None:  # the main process of torchrun prints it
        return
    scores = "".join(f"  {score}" for score in result.scores)
    say(console, f"validation loss {result.validation_loss:.3f}{scores}")
    say(console, f"model: {folder / 'model'}")
    if result.diverged:
        loss = result.validation_loss
        fail(f"the training has diverged: its validation loss is {loss}", status=1)
    print_next(console, folder)


@command("Train", "headwise recipes lm-pydoc")
def recipes(
    name: Annotated[str | None, Argument(help="Print this recipe, to start your own from.")] = None,
    keys: Annotated[str | None, Option(metavar="TASK|SYSTEM", help="List its keys.")] = None,
    modules: Import = None,
) -> None:
    """List the recipes that come with headwise, or print one to start your own from.

    --keys lists the keys of a task's recipes (translation), or the options of a system, the
    settings of its rule and its ablations (moa).
    """
    from headwise.recipes.document import listed_recipes, read_document, shipped_recipes

    if keys is not None:
        from headwise.recipes.keys import keys_of

        _print_rows(
            [
                (key.name, key.meaning + ("" if key.default == "–" else f" Default: {key.default}"))
                for key in keys_of(keys)
            ]
        )
        return
    if name is not None:
        read_document(name)  # checks it, also if it is a file
        text = shipped_recipes().get(name) or Path(name).read_text(encoding="utf-8")
        typer.echo(text, nl=False)
        return
    for title, is_offline in (
        ("These run offline:", True),
        ("\nThese have the papers' settings, or data that are not installed:", False),
    ):
        say(Console(), title, "bold")
        _print_rows(
            [
                (r.name, f"{r.task}, {r.budget}, {r.systems} systems: {r.description}")
                for r in listed_recipes()
                if r.is_offline is is_offline
            ]
        )
    say(Console(), "\nOne of them, to start your own from: headwise recipes NAME")


def _print_rows(rows: list[tuple[str, str]]) -> None:
    """Prints names and their descriptions in two columns, in the width of the terminal."""
    table = Table(Column(style="bold", no_wrap=True), Column(), box=None, show_header=False)
    table.pad_edge = False
    for name, description in rows:
        table.add_row(Text(name), Text(description))
    Console().print(table)


@command("Train", "headwise cost lm-pydoc --systems standard,moa")
def cost(
    recipe: Annotated[str, Argument(metavar="RECIPE")] = "interface-strings",
    systems: Annotated[str | None, Option(help="Systems, separated by commas.")] = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Count the parameters and multiply-accumulates of a recipe's systems without training.

    Multiply-accumulates are those of one forward pass; the caption of the table has its length.
    """
    from headwise.recipes.document import check_names

    names = parse_names("--systems", systems)
    check_names(recipe, names, changes=changes or [])

    from headwise.analysis.cost import model_cost
    from headwise.recipes.recipe import load_recipe, task_class

    file = load_recipe(recipe, changes or [])
    file.check_comparable()
    task, dataset = task_class(file.recipe.task), None if file.has_data else file.dataset_names[0]
    lengths = task.cost_lengths(file.recipe)
    chosen: list[str | None] = [*(names or file.system_names)]
    costs = {
        name or "model": model_cost(task.config(file.system(name, dataset)), lengths)
        for name in chosen or [None]
    }
    if as_json:
        documents = {
            name: cost._asdict()
            | {"parameters": cost.parameters._asdict() | {"total": cost.parameters.total}}
            for name, cost in costs.items()
        }
        print_json({"recipe": recipe, "lengths": lengths, "systems": documents})
    else:
        _print_costs(recipe, lengths, costs)


def _print_costs(name: str, lengths: dict[str, int], costs: dict[str, "Cost"]) -> None:
    """Prints a table of 80 columns."""
    from headwise.report.page import format_count

    table = Table(Column("system", style="bold", overflow="fold"), title=name, box=None)
    parts = ("embed-\ndings", "atten-\ntion", "routing", "feed-\nforward", "rest", "para-\nmeters")
    for header in (*parts, "linear\nMACs", "MACs"):
        table.add_column(header, justify="right", no_wrap=True)
    for system, cost in costs.items():
        numbers = (*cost.parameters, cost.parameters.total, cost.linear_macs, cost.macs)
        table.add_row(Text(system), *map(format_count, numbers))
    counts = [f"{length} positions in the {stack}" for stack, length in lengths.items()]
    table.caption = (
        f"MACs: {' and '.join(counts)}; the linear ones without the products of attention. Sizes "
        f"are those of the recipe: little data may give a smaller vocabulary."
    )
    table.caption_justify = "left"
    Console().print(table)
