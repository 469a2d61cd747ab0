"""The commands of `headwise`. Each is thin: the library does the work."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from headwise.analysis.chance import Difference
    from headwise.models.base import HeadwiseModel
    from headwise.recipe import RecipeFile
    from headwise.recipe.settings import Recipe
    from headwise.tasks.outcome import Score
    from headwise.tasks.task import Task

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Train, compare and use systems that papers propose for the heads of multi-head "
    "attention, in place of concatenating them.",
    epilog="A recipe is a YAML file, or the name of a recipe that `headwise recipes` lists.",
    pretty_exceptions_show_locals=False,
)

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or path of a .yaml file.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the recipe: training.max_steps=100. May be given several times.",
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run, which contains model/.")
]


@app.callback()
def start() -> None:
    """Make files of the current folder importable, so that recipes can name systems in them."""
    # At the end of the path, so that a folder named `datasets` does not hide the library.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print the file of this recipe.")] = None,
) -> None:
    """List the recipes that come with headwise by task, or print one to start your own from."""
    with _clear_errors():
        from headwise.recipe import load_recipe, shipped_recipes
        from headwise.recipe.catalogue import TASKS

        shipped = shipped_recipes()
        if name is not None:
            load_recipe(name)
            typer.echo(shipped.get(name) or Path(name).read_text(encoding="utf-8"), nl=False)
            return
        table = Table(box=None, pad_edge=False, show_header=False)
        found = {each: load_recipe(each).recipe for each in shipped}
        for task in TASKS:
            table.add_row(f"[underline]{task}")
            for each, recipe in found.items():
                if recipe.task == task:
                    table.add_row(f"[bold]{each}", recipe.description)
        Console().print(table)


@app.command()
def keys(
    task: Annotated[str | None, typer.Argument(help="Name of a task: language-modelling.")] = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print the keys of all tasks as one page: docs/keys.md."),
    ] = False,
) -> None:
    """List the keys that a recipe may have, with their defaults."""
    with _clear_errors():
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


@app.command()
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
        int,
        typer.Option(
            metavar="N",
            help="Train N runs at a time, each in a process of its own with its share of the CPU "
            "threads and, of several GPUs, one.",
        ),
    ] = 1,
    match: Annotated[
        str | None,
        typer.Option(
            metavar="parameters",
            help="Give every system as many parameters as the first has by changing its width.",
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
    changes: Changes = None,
) -> None:
    """Train several systems under one budget and report which is better, and at what cost.

    You can stop it with Ctrl-C and start it again: finished systems are not trained again.

    The report is written whenever a run has ended. A run that fails leaves the others alone.
    """
    with _clear_errors("The same command goes on from here."):
        from headwise.analysis.report import write_report
        from headwise.analysis.results import Benchmark, Comparison
        from headwise.analysis.table import results_table
        from headwise.comparison import RunsFailed, compare_systems
        from headwise.comparison.grid import parse_grid
        from headwise.experiment.folders import is_main_process
        from headwise.files import write_text
        from headwise.recipe import RecipeError, load_recipe
        from headwise.training.run import Interrupted

        _quiet()
        file = load_recipe(recipe, changes or [])
        _print_notes(file)
        names = _names("--systems", systems) or file.system_names
        if not names:
            raise RecipeError(
                f"recipe {recipe} names no systems, expected at least one to train; add some under "
                f"`systems`"
            )
        if match not in (None, "parameters"):
            raise ValueError(f"--match is {match!r}, expected 'parameters'")
        grid = parse_grid(tune or [], tune_steps)
        numbers = _seeds(seeds) if seeds else file.recipe.seeds or [file.recipe.training.seed]
        folder = output or Path("runs") / Path(recipe).stem
        report = folder / "report.html"
        console = Console(quiet=not is_main_process())

        def write(found: Comparison | Benchmark) -> None:
            write_text(folder / "comparison.json", found.model_dump_json(indent=1))
            write_report(found, report)

        try:
            found = compare_systems(
                file,
                names,
                numbers,
                folder,
                _command_line(),
                console,
                datasets=_names("--datasets", datasets) or file.dataset_names,
                match=match is not None,
                grid=grid,
                jobs=jobs,
                write=write,
            )
        except (Interrupted, RunsFailed) as error:
            if report.is_file():
                _print_path(console, "report as far as it goes", report)
            if isinstance(error, Interrupted):
                raise
            _print_error(f"{error}\nThe same command tries again.")
            raise typer.Exit(1) from None
        if found is not None:
            console.print(results_table(found))
            _print_path(console, "report", report)


@app.command()
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
) -> None:
    """Count the parameters and multiply-accumulates of a recipe's systems without training."""
    with _clear_errors():
        from headwise.analysis.cost import cost_table
        from headwise.recipe import load_recipe
        from headwise.recipe.catalogue import task_class

        console = Console()
        if papers:
            from headwise.analysis.papers import published_figures
            from headwise.analysis.papers_table import papers_summary, papers_tables

            figures = published_figures()
            for table in papers_tables(figures):
                console.print(table)
            console.print(papers_summary(figures), highlight=False)
        for recipe in recipes or ([] if papers else ["interface-strings"]):
            file = load_recipe(recipe, changes or [])
            _print_notes(file)
            file.check_comparable()
            names = _names("--systems", systems) or file.system_names
            task = task_class(file.recipe.task)
            dataset = None if file.has_data else file.dataset_names[0]
            configs = {name: task.nominal_config(file.system(name, dataset)) for name in names}
            configs = configs or {"model": task.nominal_config(file.recipe)}
            counted = _lengths(lengths, task.cost_lengths(file.recipe))
            source = "" if lengths else task.macs_lengths_from
            console.print(cost_table(Path(recipe).stem, configs, counted, source))


@app.command()
def train(
    recipe: RecipeName = "interface-strings",
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
) -> None:
    """Train one system and evaluate it. A stopped run continues where it was stopped."""
    with _clear_errors("The same command goes on from here."):
        from headwise.experiment.folders import is_main_process
        from headwise.experiment.one_system import train_system
        from headwise.experiment.preparing import prepare_task
        from headwise.recipe import load_recipe

        _quiet()
        file = load_recipe(recipe, changes or [])
        _print_notes(file)
        chosen = file.system(system, dataset)
        name = system or "model"
        parts = [Path(recipe).stem, *([dataset] if dataset else []), name]
        folder = output or Path("runs") / "-".join(parts)
        console = Console(quiet=not is_main_process())
        task = prepare_task(chosen, folder, console)
        result = train_system(chosen, name, folder, task, console)
        scores = "  ".join(str(score) for score in result.scores)
        console.print(f"validation loss {result.validation_loss:.3f}  {scores}", highlight=False)
        console.print(f"model: {folder / 'model'}", soft_wrap=True, highlight=False, markup=False)


@app.command()
def evaluate(
    run: RunFolder,
    part: Annotated[
        str,
        typer.Option(
            help="Part of the data: train, validation, test, or the name of a further test set."
        ),
    ] = "test",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Evaluate on other data in place of a part: source=a.en,target=a.de for "
            "translation. The keys are those of data.tests.NAME; headwise keys TASK lists them.",
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
            "several times; headwise keys lists what there is. Not for the run of --against.",
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Evaluate a finished run on a part of its data or on other data, with 95% intervals."""
    with _clear_errors():
        from functools import partial

        from headwise.evaluation import compare_runs, evaluate_run
        from headwise.models.ablation import parse_ablations

        _quiet()
        if data is not None and part != "test":
            raise ValueError(f"--data is {data!r} and --part is {part!r}, expected one of them")
        console = Console()
        evaluated = partial(
            evaluate_run,
            part=part,
            console=console,
            data=data,
            changes=changes or [],
            note=_print_note,
            may_be_stored=against is not None,
        )
        found = evaluated(run, ablations=parse_ablations(ablate or []))
        size = f"{len(found.task.part(found.part)):,} {found.task.item_name}"
        facts = found.task.notes.get(f"test {found.part}", size)  # of a further test set
        console.print(f"{found.part}: {facts}", highlight=False, soft_wrap=True, markup=False)
        if against is None:
            _print_scores(found.outcome.scores, console)
            return
        other = evaluated(against)
        difference = compare_runs(found, other)
        for name, of in ((run, found), (against, other)):
            console.print(str(name), style="bold", highlight=False, soft_wrap=True, markup=False)
            _print_scores(of.outcome.scores, console)
        _print_difference(difference, found.outcome.scores[0], console)


@app.command()
def translate(
    run: RunFolder,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="Text file with a sentence in each line; without it, standard input is read."
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Translate lines of text and print them to standard output."""
    with _clear_errors():
        from headwise.experiment.outcomes import as_evaluated
        from headwise.tasks.sources import decoded_lines, read_lines
        from headwise.tasks.text.parallel.translating import translate as translate_texts
        from headwise.tasks.text.tokenization import TOKENIZER, TranslationTokenizer
        from headwise.tasks.translation import Translation

        _quiet()
        recipe, model = _open(run, Translation, changes)
        tokenizer = TranslationTokenizer.load(run / TOKENIZER)
        if source is not None:
            lines = read_lines(source)
        else:
            lines = list(decoded_lines(sys.stdin.buffer, "standard input"))
        with as_evaluated(model, recipe.evaluation, Console(stderr=True), run.name):
            translations = translate_texts(model, tokenizer, lines, recipe.evaluation)
        for line in translations:
            typer.echo(line)


@app.command()
def generate(
    run: RunFolder,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="Text to continue, for language models. May be given several times."),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many texts to write for each prompt, or how many images to draw."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="PNG file to write, for image models.", show_default="RUN.png"),
    ] = None,
    changes: Changes = None,
) -> None:
    """Continue a text or draw images with a finished run.

    The keys of sampling are changed with --set: evaluation.generation.temperature=0.7 for texts,
    evaluation.temperature=0.7 for images.
    """
    with _clear_errors():
        from headwise.experiment.outcomes import as_evaluated
        from headwise.experiment.reading import open_run
        from headwise.recipe.catalogue import task_class
        from headwise.tasks.task import Wish

        _quiet()
        recipe, model = open_run(run, changes or [], _print_note)
        wish = Wish(prompt, number, output, typer.echo)
        with as_evaluated(model, recipe.evaluation, Console(stderr=True), run.name):
            task_class(recipe.task).generate(run, recipe, model, wish)


@app.command()
def enhance(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(metavar="IN", help="Sound file: WAV, FLAC, ...")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="Sound file to write, as long as IN.")
    ],
    changes: Changes = None,
) -> None:
    """Remove the noise from a recording of speech of any length with a finished run."""
    with _clear_errors():
        from headwise.experiment.outcomes import as_evaluated
        from headwise.tasks.sound.audio import audio_info
        from headwise.tasks.sound.enhancing import enhance_file
        from headwise.tasks.speech import SpeechEnhancement

        _quiet()
        recipe, model = _open(run, SpeechEnhancement, changes)
        console = Console(stderr=True)
        samples = audio_info(source).samples
        with (
            as_evaluated(model, recipe.evaluation, console, run.name),
            _bar(samples, console) as advance,
        ):
            enhance_file(model, recipe.evaluation.context, source, target, advance)
        Console().print(f"written: {target}", soft_wrap=True, highlight=False, markup=False)


def _print_scores(scores: "Sequence[Score]", console: Console) -> None:
    for score in scores:
        console.print(
            f"{score}  {score.note}".rstrip(), highlight=False, soft_wrap=True, markup=False
        )


def _print_difference(difference: "Difference | None", score: "Score", console: Console) -> None:
    """Prints what the items of a test say of two runs, and what they cannot say."""
    if difference is None:
        text = "There are too few items, or no finite scores, to test the difference."
    else:
        value, low, high = (
            f"{number:+.{score.digits + 1}f}"
            for number in (difference.value, difference.low, difference.high)
        )
        text = (
            f"difference of {score.name}: {value} [{low}, {high}], p = {difference.p_value:.3g} "
            f"over items\n"
            f"These are single runs: interval and p hold the chance of the items, and nothing of "
            f"that of training. With other seeds the difference may be another."
        )
    console.print(text, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _clear_errors(when_stopped: str = "") -> Iterator[None]:
    """Prints an error of the user as a message, not as a traceback."""
    from headwise.training.run import Interrupted

    try:
        yield
    except Interrupted as stop:
        Console(stderr=True).print(f"{stop}. {when_stopped}", highlight=False)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped. {when_stopped}", highlight=False)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader of our output has closed it
        raise typer.Exit(0) from None
    except (ValueError, OSError) as error:
        _print_error(str(error))
        raise typer.Exit(2) from None


def _print_path(console: Console, what: str, path: Path) -> None:
    console.print(f"{what}: {path}", soft_wrap=True, highlight=False, markup=False)


def _print_error(text: str) -> None:
    Console(stderr=True).print(
        f"error: {text}", style="red", highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def _print_notes(file: "RecipeFile") -> None:
    """What the author of a recipe should know."""
    for note in file.notes:
        _print_note(note)


def _print_note(note: str) -> None:
    Console(stderr=True).print(f"note: {note}", style="yellow", highlight=False, markup=False)


def _quiet() -> None:
    """Silences the progress bars and the advice of other libraries."""
    from headwise.training.progress import silence_libraries

    silence_libraries()


def _open(
    run: Path, task: "type[Task]", changes: list[str] | None
) -> "tuple[Recipe, HeadwiseModel]":
    """Returns the recipe and the model of a run, which has to be of a certain task."""
    from headwise.experiment.folders import FolderError
    from headwise.experiment.reading import open_run

    recipe, model = open_run(run, changes or [], _print_note)
    if not isinstance(recipe, task.recipe_class):
        raise FolderError(f"{run} is a run of {recipe.task}, expected a run of {task.name()}")
    return recipe, model


@contextmanager
def _bar(total: int, console: Console) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar with the time left."""
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _names(option: str, text: str | None) -> list[str]:
    names = _split(text or "")
    if len(set(names)) < len(names):
        raise ValueError(f"{option} is {text!r}, expected different names, separated by commas")
    return names


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in _split(text)]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(
            f"--seeds is {text!r}, expected different whole numbers from 0, separated by commas: "
            f"1,2,3"
        )
    return seeds


def _lengths(text: str | None, default: dict[str, int]) -> dict[str, int]:
    """Returns a length for each stack of the task's model."""
    if text is None:
        return default
    try:
        numbers = [int(number) for number in _split(text)]
    except ValueError:
        numbers = []
    if len(numbers) != len(default) or min(numbers) < 1:
        expected = ",".join(str(length) for length in default.values())
        what = " and ".join(default)
        raise ValueError(
            f"--lengths is {text!r}, expected the lengths of the {what}, separated by commas: "
            f"{expected}"
        )
    return dict(zip(default, numbers, strict=True))


def _command_line() -> str:
    return shlex.join(["headwise", *sys.argv[1:]])
