"""The commands of experiments: compare systems, train one, evaluate a finished run."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headwise.cli.parameters import (
    Changes,
    ChangesOfRun,
    Import,
    Json,
    Part,
    RecipeName,
    RunFolder,
    parse_names,
    parse_seeds,
)
from headwise.cli.printing import (
    clear_errors,
    command_line,
    print_error,
    print_json,
    print_next_commands,
    print_path,
    silence,
)

if TYPE_CHECKING:
    from headwise.analysis.results import Benchmark, Comparison, RunResult
    from headwise.analysis.statistics.estimates import Difference
    from headwise.runs.cluster import Cluster
    from headwise.runs.evaluating import Evaluation
    from headwise.tasks.scores import Score


class Match(StrEnum):
    """What all systems are given alike, see `headwise.runs.matching`."""

    parameters = "parameters"
    parameters_and_heads = "parameters-and-heads"


def compare(
    recipe: RecipeName = "interface-strings",
    systems: Annotated[
        str | None,
        typer.Option(help="Systems of the recipe, separated by commas; the first is the baseline."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Seeds, separated by commas: 1,2,3. Every system is trained once with each."
        ),
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="Data sets of the recipe, separated by commas.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs and the report.", show_default="runs/RECIPE"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train N runs at a time, each in a process of its own with its share of the CPU "
            "threads and, of several GPUs, one.",
            show_default="1, or with --on as many as the cluster has room for",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray://HOST:PORT",
            help="Train the runs on the machines of a Ray cluster, each with a GPU if there are "
            "any, else with OMP_NUM_THREADS CPUs, by default one.",
            show_default="this machine",
        ),
    ] = None,
    match: Annotated[
        Match | None,
        typer.Option(
            help="Give every system as many parameters as the first has: by changing its width, "
            "or its width and the number of its heads.",
        ),
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
        typer.Option(
            min=1, help="How many steps each try of --tune takes.", show_default="as many as a run"
        ),
    ] = None,
    tune_equal: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="LOSS",
            help="Tries of --tune whose validation loss is no further than this above the lowest "
            "count as equal: the first of them in the order of the values is chosen.",
            show_default="the lowest is chosen",
        ),
    ] = None,
    changes: Changes = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Train several systems under one budget and report which is better, and at what cost.

    You can stop it with Ctrl-C and start it again: finished systems are not trained again.

    The report is written whenever a run has ended. A run that fails leaves the others alone.
    """
    with clear_errors("The same command goes on from here."):
        from headwise.recipes.document import RecipeError, read_document

        asked = parse_names("--systems", systems)
        asked_data = parse_names("--datasets", datasets)
        given_seeds = parse_seeds(seeds) if seeds else None
        read_document(recipe)  # a wrong name is told before PyTorch is loaded

        from headwise.analysis.results import Benchmark, Comparison
        from headwise.files import write_text
        from headwise.recipes.recipe import load_recipe
        from headwise.report.comparison import write_report
        from headwise.report.table import results_table
        from headwise.runs.comparing import compare_systems, run_to_look_into
        from headwise.runs.folder import is_main_process
        from headwise.runs.grid import parse_grid
        from headwise.runs.locking import locked
        from headwise.runs.running import RunsFailed
        from headwise.training.interrupted import Interrupted

        silence()
        file = load_recipe(recipe, changes or [])
        names = asked or file.system_names
        if not names:
            raise RecipeError(
                f"recipe {recipe} names no systems, expected at least one to train; add some under "
                f"`systems`"
            )
        grid = parse_grid(tune or [], tune_steps, tune_equal)
        numbers = given_seeds or file.recipe.seeds or [file.recipe.training.seed]
        folder = (output or Path("runs") / Path(recipe).stem).expanduser()
        report = folder / "report.html"
        console = Console(stderr=as_json, quiet=not is_main_process())

        def write(found: Comparison | Benchmark) -> None:
            write_text(folder / "comparison.json", found.model_dump_json(indent=1))
            write_report(found, report)

        try:
            with locked(folder), _cluster(on, console) as cluster:
                found = compare_systems(
                    file,
                    names,
                    numbers,
                    folder,
                    command_line(),
                    console,
                    datasets=asked_data or file.dataset_names,
                    match=None if match is None else match.value,
                    grid=grid,
                    jobs=(cluster.room if cluster else 1) if jobs is None else jobs,
                    start=cluster.start if cluster else None,
                    write=write,
                )
        except (Interrupted, RunsFailed) as error:
            if report.is_file():
                print_path(console, "report as far as it goes", report)
            if isinstance(error, Interrupted):
                raise
            print_error(f"{error}\nThe same command tries again.")
            raise typer.Exit(1) from None
        if found is not None and as_json:
            print_json({"report": report, **_in_json(found)})
        elif found is not None:
            console.print(results_table(found), crop=False)
            print_path(console, "report", report)
            print_next_commands(console, run_to_look_into(found, folder))


def _in_json(found: "Comparison | Benchmark") -> dict[str, Any]:
    """What the table of a comparison is made of: all but curves, samples, pictures and recipe."""
    from headwise.analysis.results import Benchmark

    if isinstance(found, Benchmark):
        return {"datasets": {name: _in_json(of) for name, of in found.comparisons.items()}}
    known = found.model_dump(include={"task", "loss_name", "item_name", "baseline", "missing"})
    systems = [
        {
            **system.model_dump(exclude={"runs", "how_soon"}),
            "runs": [_figures(run) for run in system.runs],
        }
        for system in found.systems
    ]
    return {**known, "systems": systems}


def _figures(run: "RunResult") -> dict[str, Any]:
    """The figures of a run that its line and the table show."""
    shown = {"system", "seed", "parameters", "trained_parameters", "macs", "macs_lengths"}
    shown |= {"steps", "seconds", "validation_loss", "scores", "tests"}
    scores = {"__all__": {"rows"}}
    return run.model_dump(include=shown, exclude={"scores": scores, "tests": {"__all__": scores}})


def _cluster(address: str | None, console: Console) -> "AbstractContextManager[Cluster | None]":
    if address is None:
        return nullcontext()
    from headwise.runs.cluster import connected

    return connected(address, console)


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="Name of a recipe, or path of a .yaml file.",
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
    with clear_errors("The same command goes on from here."):
        from headwise.recipes.document import read_document

        if recipe is None:
            raise ValueError(_without_recipe())
        read_document(recipe)  # a wrong name is told before PyTorch is loaded

        from headwise.analysis.results import diverged
        from headwise.recipes.recipe import load_recipe
        from headwise.runs.folder import is_main_process
        from headwise.runs.locking import locked
        from headwise.runs.one_run import train_system
        from headwise.runs.preparing import prepare_task
        from headwise.training.checkpoints import REMEDIES

        silence()
        chosen = load_recipe(recipe, changes or []).system(system, dataset)
        name = system or "model"
        parts = [Path(recipe).stem, *([dataset] if dataset else []), name]
        folder = (output or Path("runs") / "-".join(parts)).expanduser()
        console = Console(stderr=as_json, quiet=not is_main_process())
        with locked(folder):
            task = prepare_task(chosen, folder, console)
            result = train_system(chosen, name, folder, task, console)
        scores = "  ".join(str(score) for score in result.scores)
        if as_json and is_main_process():
            print_json({"model": folder / "model", **_figures(result)})
        elif not as_json:
            loss = f"validation loss {result.validation_loss:.3f}"
            console.print(f"{loss}  {scores}", highlight=False)
            print_path(console, "model", folder / "model")
        if diverged(result):
            print_error(
                f"the training has diverged: its validation loss is {result.validation_loss}; "
                f"train into another folder with {REMEDIES}"
            )
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


def evaluate(
    run: RunFolder,
    part: Part = "test",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Evaluate on other data in place of a part, given by keys of `data`: "
            "files.test=other.tsv, or path=other/dataset.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Test the difference to another run on the same items."),
    ] = None,
    ablate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM=NAME[,OPTION=VALUE]",
            help="Evaluate a system otherwise than it was trained: SYSTEM=uniform. May be given "
            "several times; headwise recipes --keys SYSTEM lists what there is. Not for the run of "
            "--against.",
        ),
    ] = None,
    changes: ChangesOfRun = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Evaluate a finished run on a part of its data or on other data, with 95% intervals."""
    with clear_errors():
        from functools import partial

        from headwise.analysis.ablations.named import parse_ablations
        from headwise.runs.evaluating import compare_runs, evaluate_run
        from headwise.runs.folder import check_run, is_main_process
        from headwise.runs.preparing import lines_of

        silence()
        if data is not None and part != "test":
            raise ValueError(f"--data is {data!r} and --part is {part!r}, expected one of them")
        if against is not None:
            check_run(against)
        console = Console(stderr=as_json, quiet=not is_main_process())
        evaluated = partial(
            evaluate_run,
            part=part,
            console=console,
            data=data,
            changes=changes or [],
            may_be_stored=against is not None,
        )
        found = evaluated(run, ablations=parse_ablations(ablate or []))
        other = None if against is None else evaluated(against)
        difference = None if other is None else compare_runs(found, other)
        if as_json:
            if is_main_process():
                document = _scores(found)
                if other is not None:
                    difference_found = None if difference is None else difference.model_dump()
                    document |= {"against": _scores(other), "difference": difference_found}
                print_json(document)
            return
        facts = {found.part: found.task.facts[found.part]}
        console.print(*lines_of(facts), highlight=False, soft_wrap=True, markup=False)
        if other is None:
            print_scores(found.outcome.scores, console)
            return
        ours = ", ".join([str(run), *(f"ablated: {each}" for each in ablate or [])])
        for name, of in ((ours, found), (str(other.run), other)):
            console.print(name, style="bold", highlight=False, soft_wrap=True, markup=False)
            print_scores(of.outcome.scores, console)
        print_difference(difference, found.outcome.scores[0], console)


def _scores(found: "Evaluation") -> dict[str, Any]:
    """What an evaluation prints: the part, how many items it has, and the scores."""
    return {
        "run": found.run,
        "part": found.part,
        "items": len(found.outcome.scores[0].rows),
        "item_name": found.task.item_name,
        "scores": [score.model_dump(exclude={"rows"}) for score in found.outcome.scores],
    }


def print_scores(scores: "Sequence[Score]", console: Console) -> None:
    for score in scores:
        console.print(
            f"{score}  {score.note}".rstrip(), highlight=False, soft_wrap=True, markup=False
        )


def print_difference(difference: "Difference | None", score: "Score", console: Console) -> None:
    """Prints how the scores of two runs differ, with interval and p, and what these leave out."""
    from headwise.report.formatting import p_value

    if difference is None:
        text = "There are too few items, or no finite scores, to test the difference."
    else:
        value, low, high = (
            f"{number:+.{score.digits + 1}f}"
            for number in (difference.value, difference.low, difference.high)
        )
        text = (
            f"difference of {score.name}: {value} [{low}, {high}], "
            f"{p_value(difference.p_value)} over items\n"
            f"These are single runs: interval and p hold the chance of the items, and nothing of "
            f"that of training. With other seeds the difference may be another."
        )
    console.print(text, highlight=False, soft_wrap=True, markup=False)
