"""The commands that use a finished run: translate, generate, enhance."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headwise.cli.parameters import (
    ChangesOfUse,
    RunFolder,
    Trust,
)
from headwise.cli.printing import clear_errors, silence

if TYPE_CHECKING:
    from headwise.models.base import HeadwiseModel
    from headwise.recipes.settings import Recipe
    from headwise.tasks.task import Task


def translate(
    run: RunFolder,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="Text file with a sentence in each line; without it, standard input is read."
        ),
    ] = None,
    changes: ChangesOfUse = None,
    trust: Trust = False,
) -> None:
    """Translate lines of text and print them to standard output."""
    with clear_errors():
        from headwise.data.sources import decoded_lines, read_lines
        from headwise.data.tokenizers.tokenization import TOKENIZER, TranslationTokenizer
        from headwise.runs.evaluating import as_evaluated
        from headwise.tasks.translating import translate as translate_texts
        from headwise.tasks.translation import Translation

        silence()
        recipe, model = _open(run, Translation, changes)
        tokenizer = TranslationTokenizer.load(run / TOKENIZER)
        if source is not None:
            lines = list(read_lines(source))
        else:
            lines = list(decoded_lines(sys.stdin.buffer, "standard input"))
        with as_evaluated(model, recipe.evaluation, Console(stderr=True), run.name):
            translations = translate_texts(model, tokenizer, lines, recipe.evaluation)
        for line in translations:
            typer.echo(line)


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
    changes: ChangesOfUse = None,
    trust: Trust = False,
) -> None:
    """Continue a text or draw images with a finished run."""
    with clear_errors():
        from headwise.recipes.catalogue import task_class
        from headwise.runs.evaluating import as_evaluated
        from headwise.runs.reading import open_run
        from headwise.tasks.task import Wish

        silence()
        recipe, model = open_run(run, changes or [])
        wish = Wish(prompt, number, output, typer.echo)
        with as_evaluated(model, recipe.evaluation, Console(stderr=True), run.name):
            task_class(recipe.task).generate(run, recipe, model, wish)


def enhance(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(metavar="IN", help="Sound file: WAV, FLAC, ...")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="Sound file to write, as long as IN.")
    ],
    changes: ChangesOfUse = None,
    trust: Trust = False,
) -> None:
    """Remove the noise from a recording of speech of any length with a finished run."""
    with clear_errors():
        from rich.progress import Progress

        from headwise.data.sound.audio import audio_info
        from headwise.runs.evaluating import as_evaluated
        from headwise.tasks.enhancing import enhance_file
        from headwise.tasks.speech import SpeechEnhancement

        silence()
        recipe, model = _open(run, SpeechEnhancement, changes)
        console = Console(stderr=True)
        samples = audio_info(source).samples
        with (
            as_evaluated(model, recipe.evaluation, console, run.name),
            Progress(console=console, transient=True) as progress,
        ):
            bar = progress.add_task("", total=samples)
            advance = partial(progress.advance, bar)
            enhance_file(model, recipe.evaluation.context, source, target, advance)
        Console().print(f"written: {target}", soft_wrap=True, highlight=False, markup=False)


def _open(
    run: Path, task: "type[Task]", changes: list[str] | None
) -> "tuple[Recipe, HeadwiseModel]":
    """Returns the recipe and the model of a run, which has to be of a certain task."""
    from headwise.runs.folder import FolderError
    from headwise.runs.reading import open_run

    recipe, model = open_run(run, changes or [])
    if not isinstance(recipe, task.recipe_class):
        raise FolderError(f"{run} is a run of {recipe.task}, expected a run of {task.name()}")
    return recipe, model
