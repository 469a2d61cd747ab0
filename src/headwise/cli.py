"""The commands. Each is thin: what it does sits in the library."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from headwise.models.base import HeadwiseModel
    from headwise.recipe.settings import Recipe
    from headwise.tasks.task import Task

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="What to do with the heads of multi-head attention other than concatenating them: train, "
    "compare and use the systems that papers propose.",
    epilog="A recipe is a YAML file, or the name of one that headwise recipes lists.",
    pretty_exceptions_show_locals=False,
)

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or a .yaml file.")
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
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run (it holds model/).")
]


@app.callback()
def start() -> None:
    """Let recipes name systems in files of the current folder, as with `python -m`."""
    # Behind all else, so that a folder called datasets hides no library.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe's file.")] = None,
) -> None:
    """List the recipes that come with headwise, by task; or print one to start your own."""
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
    task: Annotated[str | None, typer.Argument(help="A task: language-modelling.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="All tasks as one page, docs/keys.md.")
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
        typer.Option(help="Which of the recipe's systems, by commas; the first is the baseline."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds by commas, each a run of every system: 1,2,3.")
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="Which of the recipe's data sets, by commas.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for runs and report.", show_default="runs/RECIPE")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            metavar="parameters",
            help="Widen or narrow every system to the number of parameters of the first.",
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Train several systems under one budget and report which is better, at what cost.

    Stop it with Ctrl-C and start it again as you like: finished systems are not trained again.
    """
    with _clear_errors("The same command goes on from here."):
        from headwise.analysis.report import write_report
        from headwise.analysis.table import results_table
        from headwise.comparison import compare_systems
        from headwise.experiment import is_main_process
        from headwise.files import write_text
        from headwise.recipe import RecipeError, load_recipe

        _quiet()
        file = load_recipe(recipe, changes or [])
        names = _names("--systems", systems) or file.system_names
        if not names:
            raise RecipeError(f"recipe {recipe} names no systems, expected at least one")
        if match not in (None, "parameters"):
            raise ValueError(f"--match is {match!r}, expected parameters")
        numbers = _seeds(seeds) if seeds else file.recipe.seeds or [file.recipe.training.seed]
        folder = output or Path("runs") / Path(recipe).stem
        console = Console(quiet=not is_main_process())
        found = compare_systems(
            file,
            names,
            numbers,
            folder,
            _command_line(),
            console,
            datasets=_names("--datasets", datasets) or file.dataset_names,
            match=match is not None,
        )
        if found is None:
            return
        write_text(folder / "comparison.json", found.model_dump_json(indent=1))
        report = folder / "report.html"
        write_report(found, report)
        console.print(results_table(found))
        console.print(f"report: {report}", soft_wrap=True, highlight=False, markup=False)


@app.command()
def cost(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE",
            help="Names of recipes, or .yaml files.",
            show_default="interface-strings",
        ),
    ] = None,
    systems: Annotated[
        str | None, typer.Option(help="Which of the recipes' systems, by commas.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens (frames, pixels) to count multiply-accumulates for; of translation source "
            "and target, by a comma.",
            show_default="the task's",
        ),
    ] = None,
    papers: Annotated[
        bool, typer.Option("--papers", help="The figures that the papers print, beside ours.")
    ] = False,
    changes: Changes = None,
) -> None:
    """Count the parameters and multiply-accumulates of a recipe's systems; nothing is trained."""
    with _clear_errors():
        from headwise.analysis.cost import cost_table
        from headwise.recipe import load_recipe
        from headwise.recipe.catalogue import task_class

        console = Console()
        if papers:
            from headwise.analysis.papers import published_figures
            from headwise.analysis.published import papers_summary, papers_tables

            figures = published_figures()
            for table in papers_tables(figures):
                console.print(table)
            console.print(papers_summary(figures), highlight=False)
        for recipe in recipes or ([] if papers else ["interface-strings"]):
            file = load_recipe(recipe, changes or [])
            file.check_comparable()
            names = _names("--systems", systems) or file.system_names
            task = task_class(file.recipe.task)
            configs = {name: task.nominal_config(file.system(name)) for name in names}
            configs = configs or {"model": task.nominal_config(file.recipe)}
            counted = _lengths(lengths, task.cost_lengths(file.recipe))
            console.print(cost_table(Path(recipe).stem, configs, counted))


@app.command()
def train(
    recipe: RecipeName = "interface-strings",
    system: Annotated[
        str | None,
        typer.Option(help="One of the recipe's systems; without it, the recipe as it stands."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="One of the recipe's data sets; without it, its data as they stand."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/RECIPE-SYSTEM")
    ] = None,
    changes: Changes = None,
) -> None:
    """Train one system and evaluate it; goes on where it was stopped."""
    with _clear_errors("The same command goes on from here."):
        from headwise.experiment import is_main_process, prepare_task, train_system
        from headwise.recipe import load_recipe

        _quiet()
        file = load_recipe(recipe, changes or [])
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
        str, typer.Option(help="Part of the corpus: train, validation or test.")
    ] = "test",
    changes: Changes = None,
) -> None:
    """Score a finished run on a part of its data, with 95% intervals."""
    with _clear_errors():
        from headwise.experiment import evaluate as evaluate_run
        from headwise.experiment import is_other_data, open_run
        from headwise.recipe.catalogue import task_class
        from headwise.tasks.parts import PARTS

        _quiet()
        if part not in PARTS:
            raise ValueError(f"--part is {part!r}, expected one of {', '.join(PARTS)}")
        recipe, model = open_run(run, changes or [])
        task = task_class(recipe.task).prepare(recipe, run)
        items, console = getattr(task, part), Console()
        if is_other_data(task, run) or is_other_data(task, run.resolve().parent):
            console.print("these are not the data that the run was trained on", style="yellow")
        outcome = evaluate_run(model, task, items, recipe.evaluation, console, run.name)
        console.print(f"{part}: {len(items):,} {task.item_name}", highlight=False)
        for score in outcome.scores:
            console.print(
                f"{score}  {score.note}".rstrip(), highlight=False, soft_wrap=True, markup=False
            )


@app.command()
def translate(
    run: RunFolder,
    source: Annotated[
        Path | None, typer.Argument(help="Text file, a sentence a line; standard input if none.")
    ] = None,
    changes: Changes = None,
) -> None:
    """Translate lines of text to standard output."""
    with _clear_errors():
        from headwise.experiment import weighed
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
        with weighed(model, recipe.evaluation, Console(stderr=True), run.name):
            translations = translate_texts(model, tokenizer, lines, recipe.evaluation)
        for line in translations:
            typer.echo(line)


@app.command()
def generate(
    run: RunFolder,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="Text to go on from; may be given several times. Of language models."),
    ] = None,
    number: Annotated[
        int | None, typer.Option(min=1, help="How many texts for each prompt, or images.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="PNG to write; of image models.", show_default="RUN.png")
    ] = None,
    changes: Changes = None,
) -> None:
    """Write text behind a prompt, or draw images, with a finished run.

    Settings of the drawing: --set evaluation.generation.temperature=0.7, for images
    --set evaluation.temperature=0.7.
    """
    with _clear_errors():
        from headwise.experiment import FolderError, open_run

        _quiet()
        recipe, model = open_run(run, changes or [])
        if recipe.task == "language-modelling":
            _refuse("--output", output, recipe.task)
            _write_texts(run, recipe, model, prompt or [""], number or 1)
        elif recipe.task == "images":
            _refuse("--prompt", prompt, recipe.task)
            _draw_images(run, recipe, model, output or Path(f"{run.name}.png"), number or 16)
        else:
            raise FolderError(
                f"{run} is a run of {recipe.task}, expected one of language-modelling or images"
            )


@app.command()
def enhance(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(metavar="IN", help="Sound file: WAV, FLAC, ...")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="Sound file to write, of the same length.")
    ],
    changes: Changes = None,
) -> None:
    """Take the noise out of a recording of speech, however long, with a finished run."""
    with _clear_errors():
        from headwise.experiment import weighed
        from headwise.tasks.sound.audio import audio_info
        from headwise.tasks.sound.enhancing import enhance_file
        from headwise.tasks.speech import SpeechEnhancement

        _quiet()
        recipe, model = _open(run, SpeechEnhancement, changes)
        console = Console(stderr=True)
        samples = audio_info(source).samples
        with (
            weighed(model, recipe.evaluation, console, run.name),
            _bar(samples, console) as advance,
        ):
            enhance_file(model, recipe.evaluation.context, source, target, advance)
        Console().print(f"written: {target}", soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _clear_errors(when_stopped: str = "") -> Iterator[None]:
    """Mistakes of the user as one message in place of a traceback."""
    from headwise.training.run import Interrupted

    try:
        yield
    except Interrupted as stop:
        Console(stderr=True).print(f"{stop}. {when_stopped}", highlight=False)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped. {when_stopped}", highlight=False)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # whoever read our output has had enough of it
        raise typer.Exit(0) from None
    except (ValueError, OSError) as error:
        Console(stderr=True).print(
            f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True
        )
        raise typer.Exit(2) from None


def _quiet() -> None:
    """Keep other libraries' bars and advice out of the way of ours."""
    import transformers
    from datasets import disable_progress_bars

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    disable_progress_bars()


def _open(
    run: Path, task: "type[Task]", changes: list[str] | None
) -> "tuple[Recipe, HeadwiseModel]":
    """The recipe and model of a run of a certain task."""
    from headwise.experiment import FolderError, open_run

    recipe, model = open_run(run, changes or [])
    if not isinstance(recipe, task.recipe_class):
        wanted = task.recipe_class.model_fields["task"].default
        raise FolderError(f"{run} is a run of {recipe.task}, expected one of {wanted}")
    return recipe, model


def _refuse(option: str, value: object, task: str) -> None:
    if value is not None:
        raise ValueError(f"{option} is not for a run of {task}; leave it out")


def _write_texts(run: Path, recipe: Any, model: Any, prompts: Sequence[str], number: int) -> None:
    from headwise.experiment import weighed
    from headwise.tasks.text.running.generating import generate_text
    from headwise.tasks.text.tokenization import TOKENIZER, TextTokenizer

    tokenizer = TextTokenizer.load(run / TOKENIZER)
    settings = recipe.evaluation.generation
    with weighed(model, recipe.evaluation, Console(stderr=True), run.name):
        for i in range(number):
            drawn = settings.model_copy(update={"seed": settings.seed + i})
            texts = generate_text(model, tokenizer, prompts, drawn)
            for prompt, text in zip(prompts, texts, strict=True):
                typer.echo((prompt + text).removesuffix("\n"))


def _draw_images(run: Path, recipe: Any, model: Any, output: Path, number: int) -> None:
    from headwise.experiment import weighed
    from headwise.files import write_bytes
    from headwise.tasks.image.drawing import draw_samples
    from headwise.tasks.image.palette import Raster

    if output.suffix.lower() != ".png":
        raise ValueError(f"--output is {output}, expected a name that ends in .png: images are PNG")
    settings = recipe.evaluation
    with weighed(model, settings, Console(stderr=True), run.name):
        png = draw_samples(
            model,
            Raster.load(run),
            number,
            seed=settings.seed,
            temperature=settings.temperature,
            top_k=settings.top_k,
        )
    write_bytes(output, png)
    Console().print(f"written: {output}", soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _bar(total: int, console: Console) -> Iterator[Callable[[int], None]]:
    """A bar of something that takes a while, and the time left."""
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _names(option: str, text: str | None) -> list[str]:
    names = _split(text or "")
    if len(set(names)) < len(names):
        raise ValueError(f"{option} is {text!r}, expected different {option[2:]} by commas")
    return names


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in _split(text)]
    except ValueError:
        raise ValueError(f"--seeds is {text!r}, expected numbers by commas: 1,2,3") from None
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(f"--seeds is {text!r}, expected different numbers by commas: 1,2,3")
    return seeds


def _lengths(text: str | None, default: dict[str, int]) -> dict[str, int]:
    """A length for each stack of a task's model."""
    if text is None:
        return default
    try:
        numbers = [int(number) for number in _split(text)]
    except ValueError:
        numbers = []
    if len(numbers) != len(default) or min(numbers) < 1:
        expected = ",".join(str(length) for length in default.values())
        what = " and ".join(default)
        raise ValueError(f"--lengths is {text!r}, expected tokens of the {what}: {expected}")
    return dict(zip(default, numbers, strict=True))


def _command_line() -> str:
    return shlex.join(["headwise", *sys.argv[1:]])
