"""The commands that train: one system, or several side by side."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from typer import Argument, Option

from headwise.cli.app import (
    Changes,
    Import,
    Json,
    command,
    command_line,
    fail,
    imported,
    parse_names,
    parse_numbers,
    print_json,
    print_next,
)
from headwise.training.watching import say, silence_libraries

if TYPE_CHECKING:
    from headwise.runs.compare import OnData

_LONG = {"history"}  # what --json leaves out, and result.json of a run has
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
    nproc: Annotated[int, Option(min=1, metavar="N", help="Share each run among N processes.")] = 1,
    on: Annotated[
        str | None, Option(metavar="ray://HOST:PORT", help="Train on the machines of a cluster.")
    ] = None,
    match: Annotated[
        Literal["parameters"] | None,
        Option(help="Give all systems as many parameters as the first, by their width."),
    ] = None,
    tune: Annotated[list[str] | None, Option(metavar="KEY=VALUE,VALUE", help=_TUNE)] = None,
    print_only: Annotated[
        bool, Option("--print", metavar="", help="Print a command for each run, and train none.")
    ] = False,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Train several systems under one budget and report which is better, and at what cost.

    You can stop it with Ctrl-C and start it again: finished runs are not trained again. The report
    is written whenever a run has ended. A run that fails leaves the others alone.
    """
    from headwise.recipes.document import check_names
    from headwise.settings import LARGEST_SEED

    names = parse_names("--systems", systems)
    data = parse_names("--datasets", datasets)
    numbers = parse_numbers("--seeds", seeds, 0, LARGEST_SEED) if seeds is not None else []
    parse_names("--seeds", seeds)  # which are different
    check_names(recipe, names, data, changes or [])

    from headwise.recipes.recipe import load_recipe
    from headwise.report.comparison import results, results_table, verdict, write_report
    from headwise.runs.compare import compare, plan
    from headwise.runs.launching import RunsFailed, cluster
    from headwise.runs.tuning import parse_grid

    silence_libraries()
    file = load_recipe(recipe, changes or [])
    names = names or file.system_names
    if not names:
        raise ValueError(f"recipe {recipe} names no systems, expected some under `systems`")
    numbers = numbers or file.recipe.seeds or [file.recipe.training.seed]
    folder = (output or Path("runs") / Path(recipe).stem).expanduser()
    console, report = Console(stderr=as_json or print_only), folder / "report.html"
    with cluster(on) as ray:  # one that does not answer is told first
        planned = plan(
            file,
            names,
            numbers,
            folder,
            console,
            datasets=data or file.dataset_names,
            match=match is not None,
            grid=parse_grid(tune or []),
        )
        if print_only:
            _print_commands(planned, folder, nproc, console)
            return
        try:
            runs = compare(
                planned,
                folder,
                command_line(),
                console,
                jobs=jobs,
                nproc=nproc,
                ray=ray,
                modules=imported,
                write=write_report,
            )
        except (KeyboardInterrupt, RunsFailed) as error:
            if report.is_file():
                say(console, f"report as far as it goes: {report}")
            if isinstance(error, KeyboardInterrupt):
                raise
            fail(str(error), status=1)
    found = {run.folder: result for run in runs if (result := run.result()) is not None}
    if as_json:
        of_runs = [{"folder": run, **of.model_dump(exclude=_LONG)} for run, of in found.items()]
        table = results(folder).to_dict("records")
        print_json({"report": report, "results": table, "runs": of_runs})
    else:
        console.print(results_table(folder), crop=False)
        say(console, verdict(folder))
        say(console, f"report: {report}")
        deciding = (run for run, of in found.items() if of.units and not of.diverged)
        print_next(console, next(deciding, runs[0].folder))


def _print_commands(planned: "list[OnData]", folder: Path, nproc: int, console: Console) -> None:
    from headwise.runs.folder import locked
    from headwise.runs.process import command

    with locked(folder):
        runs = [run for of in planned for run in of.claim(of.runs(console))]
    waiting = [run.folder for run in runs if run.result() is None]
    # `python -m headwise`, or with several processes `python -m torch.distributed.run`.
    program = "headwise" if nproc == 1 else "torchrun"
    for each in waiting:
        typer.echo(shlex.join([program, *command(each, nproc, imported)[3:]]))
    then = "the same command goes on, and without --print makes the report"
    say(console, f"{len(waiting)} commands; when they have ended, {then}")


@command("Train", "headwise train lm-pydoc --system moa --set training.max_steps=100")
def train(
    recipe: Annotated[
        str, Argument(metavar="RECIPE|FOLDER", help="A recipe, or the folder of a run, to go on.")
    ],
    system: Annotated[str | None, Option(help="A system of the recipe.")] = None,
    dataset: Annotated[str | None, Option(help="A data set of the recipe.")] = None,
    output: Annotated[
        Path | None, Option(help="Folder for the run.", show_default="runs/RECIPE-SYSTEM")
    ] = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Train one system and evaluate it. A stopped run continues where it was stopped.

    The exit status is 1 if the training has diverged: its validation loss is no number.
    """
    from headwise.recipes.document import check_names, shipped_recipes
    from headwise.runs.names import check_run

    goes_on = recipe not in shipped_recipes() and Path(recipe).is_dir()
    if goes_on:
        check_run(Path(recipe))
        given = {"--system": system, "--dataset": dataset, "--output": output, "--set": changes}
        if options := " and ".join(name for name, value in given.items() if value):
            raise ValueError(f"{recipe} is a run, which goes on as it is: leave out {options}")
    else:
        check_names(recipe, filter(None, [system]), filter(None, [dataset]), changes or [])

    from headwise.recipes.recipe import load_recipe
    from headwise.runs.folder import claim
    from headwise.runs.process import end_with_parent
    from headwise.runs.run import train_run
    from headwise.training.trainer import accelerator_for

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
        print_json({"model": folder / "model", **result.model_dump(exclude=_LONG)})
    else:
        scores = "".join(f"  {score}" for score in result.scores)
        say(console, f"validation loss {result.validation_loss:.3f}{scores}")
        say(console, f"model: {folder / 'model'}")
    if result.diverged:
        loss = result.validation_loss
        fail(f"the training has diverged: its validation loss is {loss}", status=1)
    if not as_json:
        print_next(console, folder)
