"""The commands that train: one system, or several side by side."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from headwise.cli.app import (
    Changes,
    Import,
    Json,
    command,
    command_line,
    imported,
    parse_names,
    print_error,
    print_json,
    print_line,
    print_next_commands,
)
from headwise.messages import shown

if TYPE_CHECKING:
    from headwise.analysis.results import Benchmark, Comparison
    from headwise.runs.plan import OneDataset

_GOES_ON = "The same command goes on from here."
# What --json leaves out, and files of the runs have: curves, decisions, samples, pictures.
_LONG_OF_RUN: Any = {"history", "attention", "courses", "snapshots", "words"}
_OF_SYSTEMS = {"__all__": {"how_soon": True, "runs": {"__all__": _LONG_OF_RUN}}}
_LONG: Any = {"samples": True, "pictures": True, "recipe": True, "systems": _OF_SYSTEMS}


@command(
    "Train",
    "headwise compare lm-pydoc --systems standard,moa --seeds 1,2 --output runs/mine",
    when_stopped=_GOES_ON,
)
def compare(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or path of a .yaml file.")
    ] = "interface-strings",
    systems: Annotated[
        str | None,
        typer.Option(help="Systems of the recipe: standard,moa. The first is the baseline."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, with each of which every system is trained: 1,2,3.")
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="Data sets of the recipe, separated by commas.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs and the report.", show_default="runs/RECIPE"),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Train N runs at a time, each in a process.")
    ] = 1,
    nproc: Annotated[
        int, typer.Option(min=1, metavar="N", help="Share each run among N processes and devices.")
    ] = 1,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray://HOST:PORT",
            help="Train the runs on the machines of a Ray cluster, which share the output folder.",
        ),
    ] = None,
    match: Annotated[
        Literal["parameters"] | None,
        typer.Option(help="Give all systems as many parameters as the first, by their width."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="Try these values of a key of `model` or `training` with every system, and train "
            "its seeds with the best for the validation loss. Several --tune: all combinations.",
        ),
    ] = None,
    tune_steps: Annotated[
        int | None,
        typer.Option(min=1, help="How many steps each try takes.", show_default="those of a run"),
    ] = None,
    print_only: Annotated[
        bool,
        typer.Option("--print", metavar="", help="Print a command for each run, and train none."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar="", help="Say what would be trained, and about how long."
        ),
    ] = False,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Train several systems under one budget and report which is better, and at what cost.

    You can stop it with Ctrl-C and start it again: finished runs are not trained again. The report
    is written whenever a run has ended. A run that fails leaves the others alone.
    """
    from headwise.recipes.names import check_names

    names = parse_names("--systems", systems)
    data = parse_names("--datasets", datasets)
    numbers = _numbers(seeds) if seeds is not None else []
    check_names(recipe, names, data, changes or [])

    from headwise.files import write_text
    from headwise.recipes.recipe import load_recipe
    from headwise.report.comparison import write_report
    from headwise.report.table import results_table
    from headwise.runs.compare import compare, run_to_look_into
    from headwise.runs.launching import RunsFailed
    from headwise.runs.plan import plan
    from headwise.runs.tuning import parse_grid
    from headwise.training.watching import silence_libraries

    silence_libraries()
    file = load_recipe(recipe, changes or [])
    names = names or file.system_names
    if not names:
        raise ValueError(f"recipe {recipe} names no systems, expected some under `systems`")
    numbers = numbers or file.recipe.seeds or [file.recipe.training.seed]
    folder = (output or Path("runs") / Path(recipe).stem).expanduser()
    how: dict[str, Any] = {"datasets": data or file.dataset_names, "match": match is not None}
    how["grid"] = parse_grid(tune or [], tune_steps)
    console = Console(stderr=as_json or print_only)
    if dry_run or print_only:
        planned = plan(file, names, numbers, folder, console, **how)
        if dry_run:
            _print_forecast(planned, console, as_json)
        else:
            _print_commands(planned, folder, nproc, console)
        return
    report = folder / "report.html"

    def write(found: "Comparison | Benchmark") -> None:
        write_text(folder / "comparison.json", found.model_dump_json(indent=1))
        write_report(found, report)

    how |= {"jobs": jobs, "nproc": nproc, "on": on, "modules": imported, "write": write}
    try:
        found = compare(file, names, numbers, folder, command_line(), console, **how)
    except (KeyboardInterrupt, RunsFailed) as error:
        if report.is_file():
            print_line(console, f"report as far as it goes: {report}")
        if isinstance(error, KeyboardInterrupt):
            raise
        print_error(str(error))
        raise typer.Exit(1) from None
    if as_json:
        of_datasets = {"comparisons": {"__all__": _LONG}}
        print_json({"report": report, **found.model_dump(exclude=_LONG | of_datasets)})
    else:
        console.print(results_table(found), crop=False)
        print_line(console, f"report: {report}")
        print_next_commands(console, run_to_look_into(found, folder))


def _numbers(seeds: str) -> list[int]:
    from headwise.settings import LARGEST_SEED

    parts = [part.strip() for part in seeds.split(",")]
    numbers = {int(part) for part in parts if part.isdecimal()}
    if len(numbers) < len(parts) or max(numbers) > LARGEST_SEED:
        raise ValueError(
            f"--seeds is {shown(seeds)}, expected different whole numbers from 0 and below 2^32, "
            f"separated by commas: 1,2,3"
        )
    return [int(part) for part in parts]


def _print_forecast(planned: "list[OneDataset]", console: Console, as_json: bool) -> None:
    from headwise.report.rendering import duration
    from headwise.runs.forecast import forecast

    found = forecast(planned, console)
    if as_json:
        print_json([each._asdict() for each in found])
        return
    for each in found:
        told = f"{each.run}: {each.parameters:,} parameters, {each.steps:,} steps"
        about = f"{each.left:,} are left, about {duration(each.seconds)}"
        print_line(console, f"{told}: {about if each.left else 'finished'}")
    print_line(
        console,
        f"In all about {duration(sum(each.seconds for each in found))}, one after the other on "
        f"this machine, as busy as it is now. Not known: evaluation, validation before a run of a "
        f"system is finished, and runs that patience or divergence ends early.",
    )


def _print_commands(
    planned: "list[OneDataset]", folder: Path, nproc: int, console: Console
) -> None:
    from headwise.runs.folder import locked
    from headwise.runs.process import command

    then = "the same command prints those of the runs"
    with locked(folder):
        runs = [run for of in planned for run in of.claim(of.tries())]
        if all(run.result() for run in runs):
            then = "the same command without --print makes the report"
            for of in planned:
                of.choose(console)
            runs = [run for of in planned for run in of.claim(of.runs())]
    waiting = [run.folder for run in runs if run.result() is None]
    for each in waiting:
        # `python -m headwise`, or with several processes `python -m torch.distributed.run`.
        program = "headwise" if nproc == 1 else "torchrun"
        typer.echo(shlex.join([program, *command(each, nproc, imported)[3:]]))
    print_line(console, f"{len(waiting)} commands; when they have ended, {then}")


@command(
    "Train",
    "headwise train lm-pydoc --system moa --set training.max_steps=100",
    when_stopped=_GOES_ON,
    by_torchrun=True,
)
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|FOLDER",
            help="Name of a recipe, path of a .yaml file, or the folder of a run, which goes on.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="A system of the recipe; by default, the recipe as it is.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A data set of the recipe; by default, its `data`.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the run.", show_default="runs/RECIPE-SYSTEM")
    ] = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Train one system and evaluate it. A stopped run continues where it was stopped.

    The exit status is 1 if the training has diverged: its validation loss is no number.
    """
    from headwise.recipes.document import shipped_recipes
    from headwise.recipes.listing import listed_recipes
    from headwise.recipes.names import check_names
    from headwise.runs.names import check_run

    if recipe is None:
        offline = ", ".join(each.name for each in listed_recipes() if each.is_offline)
        raise ValueError(
            f"no recipe is named, expected one to train, such as headwise train lm-pydoc\n"
            f"  offline: {offline}\n  the papers': headwise recipes --papers\n"
            f"headwise recipes says what they are"
        )
    goes_on = recipe not in shipped_recipes() and Path(recipe).is_dir()
    if goes_on:
        check_run(Path(recipe))
        given = {"--system": system, "--dataset": dataset, "--output": output, "--set": changes}
        if options := [name for name, value in given.items() if value]:
            raise ValueError(
                f"{recipe} is the folder of a run, which goes on with its recipe: leave out "
                f"{options[0]}"
            )
    else:
        check_names(recipe, filter(None, [system]), filter(None, [dataset]), changes or [])

    from headwise.analysis.results import diverged
    from headwise.recipes.recipe import load_recipe
    from headwise.runs.folder import claim
    from headwise.runs.process import end_with_parent
    from headwise.runs.run import train_run
    from headwise.training.trainer import accelerator_for
    from headwise.training.watching import silence_libraries

    silence_libraries()
    end_with_parent()
    console, folder = Console(stderr=as_json), Path(recipe)
    if not goes_on:
        chosen = load_recipe(recipe, changes or []).system(system, dataset)
        parts = filter(None, [Path(recipe).stem, dataset, system or "model"])
        folder = (output or Path("runs") / "-".join(parts)).expanduser()
        processes = accelerator_for(chosen.training, folder)  # of torchrun, or this one
        with processes.main_process_first():
            if processes.is_main_process:
                claim(folder, chosen)
    result = train_run(folder, console)
    if result is None:  # of torchrun the main process tells it
        return
    if as_json:
        print_json({"model": folder / "model", **result.model_dump(exclude=_LONG_OF_RUN)})
    else:
        scores = "".join(f"  {score}" for score in result.scores)
        print_line(console, f"validation loss {result.validation_loss:.3f}{scores}")
        print_line(console, f"model: {folder / 'model'}")
    if diverged(result):
        print_error(f"the training has diverged: its validation loss is {result.validation_loss}")
        raise typer.Exit(1)
    if not as_json:
        print_next_commands(console, folder)
