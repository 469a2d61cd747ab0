"""Models at work on one input, recorded for the page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from headwise.experiment.folders import distinct_names
from headwise.experiment.reading import check_finite, open_run
from headwise.inspection.exploring.inputs.images import image_input
from headwise.inspection.exploring.inputs.labelled import labelled_input
from headwise.inspection.exploring.inputs.language import language_input
from headwise.inspection.exploring.inputs.masked import masked_input
from headwise.inspection.exploring.inputs.source import Input, Source, Trained
from headwise.inspection.exploring.inputs.speech import speech_input
from headwise.inspection.exploring.inputs.translation import translation_input
from headwise.inspection.exploring.payload import Asked, Payload, Question, Run
from headwise.inspection.exploring.places import BUDGET, check_size, recorded_places
from headwise.inspection.exploring.removing import chosen_ablation, in_force, possible_ablations
from headwise.inspection.exploring.watching import watch
from headwise.models.ablation import ablated
from headwise.models.decisions import words_of

INPUTS: dict[str, Callable[[Trained, Source], Input]] = {
    "translation": translation_input,
    "language-modelling": language_input,
    "masked-language-modelling": masked_input,
    "classification": labelled_input,
    "probing": labelled_input,
    "images": image_input,
    "speech-enhancement": speech_input,
}
# Tasks whose input is not a text.
_WITHOUT_TEXT = ("images", "speech-enhancement")


class Explorer:
    """Models of finished runs that read the same inputs.

    Args:
        runs: the runs, at least one, all of one task.
        source: the input of the page.
        changes: to `evaluation` in the recipes, as `--set` takes them.

    Raises:
        FolderError: a folder is no finished run, or of one that has diverged.
        ValueError: the runs are of different tasks.
    """

    def __init__(
        self,
        runs: Sequence[Path],
        source: Source,
        changes: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.trained = []
        for folder, name in zip(runs, distinct_names(runs), strict=True):
            recipe, model = open_run(folder, changes)
            check_finite(folder, model)
            self.trained.append(Trained(name, folder, recipe, model))
        tasks = {trained.name: trained.recipe.task for trained in self.trained}
        if len(set(tasks.values())) > 1:
            each = ", ".join(f"{name} of {task}" for name, task in tasks.items())
            raise ValueError(
                f"the runs are of different tasks ({each}), expected runs of one task: they are "
                f"shown side by side on the same input"
            )
        self.task: str = self.trained[0].recipe.task

    def answer(self, question: Question) -> Payload:
        """Returns what the page asks a server for.

        Raises:
            ValueError: the input cannot be read, or an ablation is not possible.
        """
        source = self.source
        if question.text is not None:
            source = replace(source, text=question.text, file=None)
        elif question.item is not None:
            source = replace(source, text=None, file=None, item=question.item)
        if question.target is not None or question.text is not None or question.item is not None:
            source = replace(source, target=question.target)
        for asked in question.ablations:
            if asked.run >= len(self.trained):
                raise ValueError(f"run is {asked.run}, expected 0 to {len(self.trained) - 1}")
        return self.record(source, question.ablations, served=True)

    def record(
        self,
        source: Source | None = None,
        asked: Sequence[Asked] = (),
        *,
        served: bool = False,
        command: str = "",
    ) -> Payload:
        """Returns what the page is given.

        Args:
            source: the input; by default that of the explorer.
            asked: the ablations that are in force.
            served: whether the page is served by a running model.
            command: the command that makes the page.

        Raises:
            ValueError: the input cannot be read, or an ablation is not possible.
        """
        source = source or self.source
        runs, inputs = [], []
        for number, trained in enumerate(self.trained):
            own = [each for each in asked if each.run == number]
            run, given = _recorded(trained, source, own, BUDGET / len(self.trained))
            runs.append(run)
            inputs.append(given)
        first = inputs[0]
        for given, run in zip(inputs, runs, strict=True):
            if given.text != first.text:
                raise ValueError(
                    f"item {source.item} of the part {source.part} of {run.name} is another text "
                    f"than that of {runs[0].name}, as the runs have other data; give a text"
                )
        return Payload(
            title=" and ".join(run.name for run in runs),
            served=served,
            item=first.item,
            text=first.text,
            note=first.note,
            target=source.target,
            takes_text=self.task not in _WITHOUT_TEXT,
            takes_target=self.task == "translation",
            runs=runs,
            command=command,
        )


def _recorded(
    trained: Trained, source: Source, asked: Sequence[Asked], budget: float
) -> tuple[Run, Input]:
    model = trained.model
    possible = possible_ablations(model)
    ablations = [chosen_ablation(possible, each.path, each.name, each.options) for each in asked]
    with ablated(model, trained.recipe.evaluation.ablation), in_force(model, ablations):
        given = INPUTS[trained.recipe.task](trained, source)
        run = recorded_run(trained.name, trained.recipe.task, model, given, budget)
    return run.model_copy(update={"ablations": possible, "ablated": ablations}), given


def recorded_run(
    name: str, task: str, model: nn.Module, given: Input, budget: float = BUDGET
) -> Run:
    """Returns what a model does with one input, as the page shows it.

    Args:
        name: of the run or the model.
        task: of its recipe; empty for any other model.
        model: the model.
        given: the input.
        budget: how many letters its attention may take on the page.

    Raises:
        ValueError: the input is too long for the page, or the model holds no system.
    """
    check_size(model, given.stacks)
    out, watched = watch(model, given.arguments)
    return Run(
        name=name,
        task=task,
        words=words_of(model),
        stacks=given.stacks,
        places=recorded_places(watched, given.stacks, budget),
        output=given.output(out),
    )
