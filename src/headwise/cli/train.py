"""The commands that train: one system, or several side by side."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from headwise.analysis.results import Benchmark, Comparison, RunResult
    from headwise.runs.plan import OneDataset
    from headwise.runs.tuning import Grid

_GOES_ON = "The same command goes on from here."


class Match(StrEnum):
    """What all systems are given alike."""

    parameters = "parameters"


def _flag(name: str, told: str) -> Any:
    return typer.Option(name, metavar="", help=told)


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
        typer.Option(help="Systems of the recipe, separated by commas; the first is the baseline."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds between commas: 1,2,3. Every system is trained with each."),
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="Data sets of the recipe, separated by commas.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs and the report.", show_default="runs/RECIPE"),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Train N runs at a time, each in a process of its own with its share of the CPU "
            "threads and, of several GPUs, one.",
        ),
    ] = 1,
    nproc: Annotated[
        int, typer.Option(min=1, metavar="N", help="Share each run among N processes and devices.")
    ] = 1,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray://HOST:PORT",
            help="Train the runs on the machines of a Ray cluster, which share the output folder: "
            "as many as it has room for, or --jobs.",
        ),
    ] = None,
    match: Annotated[
        Match | None,
        typer.Option(help="Give every system as many parameters as the first, by its width."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="Try these values of a key of `model` or `training` with every system, and train "
            "the seeds with the value of the lowest validation loss. Given several times, all "
            "combinations are tried.",
        ),
    ] = None,
    tune_steps: Annotated[
        int | None,
        typer.Option(min=1, help="How many steps each try takes.", show_default="those of a run"),
    ] = None,
    print_commands: Annotated[
        bool, _flag("--print", "Train nothing: print a command for each run, for xargs or Slurm.")
    ] = False,
    dry_run: Annotated[
        bool, _flag("--dry-run", "Say what would be trained and about how long; write nothing.")
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

    asked, asked_data = parse_names("--systems", systems), parse_names("--datasets", datasets)
    given_seeds = _seeds(seeds) if seeds is not None else []
    check_names(recipe, asked, asked_data, changes or [])

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
    if not (names := asked or file.system_names):
        raise ValueError(f"recipe {recipe} names no systems, expected some under `systems`")
    numbers = given_seeds or file.recipe.seeds or [file.recipe.training.seed]
    folder = (output or Path("runs") / Path(recipe).stem).expanduser()
    grid = parse_grid(tune or [], tune_steps)
    console = Console(stderr=as_json or print_commands)
    how: dict[str, Any] = {"datasets": asked_data or file.dataset_names}
    how |= {"match": match is not None, "grid": grid}
    if dry_run or print_commands:
        planned = plan(file, names, numbers, folder, console, **how)
        if dry_run:
            _print_forecast(planned, numbers, grid, console, as_json)
        else:
            _print_commands(planned, numbers, grid, folder, nproc, console)
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
        print_json({"report": report, **_figures(found)})
        return
    console.print(results_table(found), crop=False)
    print_line(console, f"report: {report}")
    print_next_commands(console, run_to_look_into(found, folder))


def _seeds(text: str) -> list[int]:
    from headwise.settings import LARGEST_SEED

    parts = [part.strip() for part in text.split(",")]
    seeds = [int(part) for part in parts if part.isdecimal()]
    if len(set(seeds)) < len(parts) or max(seeds) > LARGEST_SEED:
        raise ValueError(
            f"--seeds is {shown(text)}, expected different whole numbers from 0 and below 2^32, "
            f"separated by commas: 1,2,3"
        )
    return seeds


def _print_forecast(
    planned: "list[OneDataset]",
    seeds: list[int],
    grid: "Grid | None",
    console: Console,
    as_json: bool,
) -> None:
    from headwise.report.rendering import duration
    from headwise.runs.forecast import forecast

    found = forecast(planned, seeds, grid, console)
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
    planned: "list[OneDataset]",
    seeds: list[int],
    grid: "Grid | None",
    folder: Path,
    nproc: int,
    console: Console,
) -> None:
    from headwise.runs.folder import locked, read_result
    from headwise.runs.process import command

    with locked(folder):
        runs = [run for of in planned for run in of.claim(of.tries(grid) if grid else [])]
        waiting = [run.folder for run in runs if read_result(run.folder) is None]
        then = "the same command prints those of the runs" if waiting else ""
        if not waiting:
            for of in planned if grid else ():
                of.choose(grid, console)
            runs = [run for of in planned for run in of.claim(of.runs(seeds))]
            waiting = [run.folder for run in runs if read_result(run.folder) is None]
    for each in waiting:  # `python -m headwise`, or `python -m torch.distributed.run`
        program = "headwise" if nproc == 1 else "torchrun"
        typer.echo(shlex.join([program, *command(each, nproc, imported)[3:]]))
    then = then or "the same command without --print makes the report"
    print_line(console, f"{len(waiting)} commands; when they have ended, {then}")


def _figures(found: "Comparison | Benchmark") -> dict[str, Any]:
    """What the table of a comparison is made of: all but curves, samples, pictures and recipe."""
    if hasattr(found, "comparisons"):
        return {"datasets": {name: _figures(of) for name, of in found.comparisons.items()}}
    known = found.model_dump(include={"task", "loss_name", "item_name", "baseline", "missing"})
    systems = [
        {
            **system.model_dump(exclude={"runs", "how_soon"}),
            "runs": [_of_run(run) for run in system.runs],
        }
        for system in found.systems
    ]
    return {**known, "systems": systems}


def _of_run(run: "RunResult") -> dict[str, Any]:
    """The figures of a run that its line and the table show."""
    shown = {"system", "seed", "parameters", "trained_parameters", "macs", "macs_lengths"}
    shown |= {"steps", "seconds", "validation_loss", "scores", "tests"}
    scores = {"__all__": {"rows"}}
    return run.model_dump(include=shown, exclude={"scores": scores, "tests": {"__all__": scores}})


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
            help="Name of a recipe, or path of a .yaml file; or the folder of a run, which goes on "
            "where it was.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(help="A system of the recipe; by default, the recipe without any changes."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="A data set of the recipe; by default, the recipe's `data`."),
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
    if recipe is None:
        raise ValueError(_without_recipe())
    is_folder = Path(recipe).is_dir()
    if is_folder:
        from headwise.runs.names import check_run

        given = {"--system": system, "--dataset": dataset, "--output": output, "--set": changes}
        if options := [name for name, value in given.items() if value]:
            raise ValueError(
                f"{recipe} is the folder of a run, which goes on with the recipe that it has: "
                f"leave out {options[0]}"
            )
        check_run(Path(recipe))
        folder = Path(recipe)
    else:
        from headwise.recipes.names import check_names

        asked = [system] if system else [], [dataset] if dataset else []
        check_names(recipe, *asked, changes or [])
        parts = [Path(recipe).stem, *asked[1], system or "model"]
        folder = (output or Path("runs") / "-".join(parts)).expanduser()

    import torch
    from accelerate import PartialState

    from headwise.analysis.results import diverged
    from headwise.recipes.recipe import load_recipe
    from headwise.runs.folder import claim, locked
    from headwise.runs.process import end_with_parent
    from headwise.runs.run import train_run
    from headwise.training.watching import silence_libraries

    silence_libraries()
    end_with_parent()
    console = Console(stderr=as_json)
    if not is_folder:
        chosen = load_recipe(recipe, changes or []).system(system, dataset)
        processes = PartialState(cpu=not torch.accelerator.is_available())  # of torchrun
        with processes.main_process_first():
            if processes.is_main_process:
                with locked(folder):
                    claim(folder, chosen)
    result = train_run(folder, console)
    if result is None:  # another process of torchrun says it
        return
    if as_json:
        print_json({"model": folder / "model", **_of_run(result)})
    else:
        scores = "".join(f"  {score}" for score in result.scores)
        print_line(console, f"validation loss {result.validation_loss:.3f}{scores}")
        print_line(console, f"model: {folder / 'model'}")
    if diverged(result):
        print_error(f"the training has diverged: its validation loss is {result.validation_loss}")
        raise typer.Exit(1)
    if not as_json:
        print_next_commands(console, folder)


def _without_recipe() -> str:
    from headwise.recipes.listing import listed_recipes

    offline = ", ".join(each.name for each in listed_recipes() if each.is_offline)
    return (
        f"no recipe is named, expected one to train, such as headwise train lm-pydoc\n"
        f"  offline: {offline}\n  the papers': headwise recipes --papers\n"
        f"headwise recipes says what they are"
    )
