"""The command that uses a finished run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headwise.cli.parameters import ChangesOfUse, Import, Json, RunFolder
from headwise.cli.printing import clear_errors, print_json, silence


def predict(
    run: RunFolder,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            help="Text files, which are read line by line, or texts with white space in them; "
            "sound files to remove noise from; images to complete. To translate, to classify and "
            "to fill masks, standard input is read without it.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option("--text", "--prompt", help="A text to read or continue; may be repeated."),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many texts to write for each prompt, or how many images to draw."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="PNG file (by default RUN.png) or sound file (NAME-enhanced.wav) to write; of "
            "several sounds their folder."
        ),
    ] = None,
    changes: ChangesOfUse = None,
    as_json: Json = False,
    modules: Import = None,
) -> None:
    """Use a finished run: translate, write, fill in masks, classify, draw or remove noise.

    What it does is the task of the run. It translates or classifies each line (a tab divides the
    texts of a pair), fills in each `<mask>`, continues each text, draws or completes images, or
    removes the noise from recordings of speech.
    """
    with clear_errors():
        from headwise.recipes.recipe import task_class
        from headwise.runs.evaluating import as_evaluated
        from headwise.runs.folder import MODEL
        from headwise.runs.reading import open_run
        from headwise.tasks.task import Wish

        silence()
        recipe, model = open_run(run, changes or [])
        wish = Wish(inputs or (), texts or (), number, output)
        with as_evaluated(model, recipe.evaluation, Console(stderr=True), run.resolve().name):
            lines = task_class(recipe.task).predict(run / MODEL, recipe, model, wish)
            if as_json:
                print_json({"task": recipe.task, "predictions": list(lines)})
                return
            for line in lines:  # one by one, and nothing is kept of a long input
                typer.echo(line)
