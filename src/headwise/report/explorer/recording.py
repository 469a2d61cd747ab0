"""Models at work on one input, recorded for the page, as they are or with units removed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch import nn

from headwise.models.ablation import ablated, ablation_options
from headwise.models.decisions import words_of
from headwise.models.sites import AttentionSite, attention_sites
from headwise.report.explorer.inputs import Input, Source, Trained
from headwise.report.explorer.media import image_input, speech_input
from headwise.report.explorer.payload import Ablation, Asked, Payload, Question, Run
from headwise.report.explorer.places import BUDGET, check_size, recorded_places, watch
from headwise.report.explorer.texts import (
    labelled_input,
    language_input,
    masked_input,
    translation_input,
)
from headwise.runs.folder import distinct_names
from headwise.runs.reading import check_finite, open_run

INPUTS: dict[str, Callable[[Trained, Source], Input]] = {
    "translation": translation_input,
    "language-modelling": language_input,
    "masked-language-modelling": masked_input,
    "classification": labelled_input,
    "probing": labelled_input,
    "images": image_input,
    "speech-enhancement": speech_input,
}
# Tasks whose input is not a text, and what it is.
_WITHOUT_TEXT = {"images": "an image", "speech-enhancement": "a WAV or FLAC file"}


class Explorer:
    """Models of finished runs that read the same inputs.

    Raises:
        FolderError: a folder is no finished run, or of one that has diverged.
        ValueError: the runs are of different tasks.
    """

    def __init__(self, runs: Sequence[Path], source: Source, changes: Sequence[str] = ()) -> None:
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
            source = replace(source, text=question.text, target=None, file=None)
        elif question.item is not None:
            source = replace(source, text=None, target=None, file=None, item=question.item)
        if question.target is not None:
            source = replace(source, target=question.target)
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

        Raises:
            ValueError: the input cannot be read, or an ablation is not possible.
        """
        source = source or self.source
        for each in asked:
            if each.run >= len(self.trained):
                raise ValueError(f"run is {each.run}, expected 0 to {len(self.trained) - 1}")
        self._check(source)
        runs: list[Run] = []
        inputs: list[Input] = []
        for number, trained in enumerate(self.trained):
            own = [each for each in asked if each.run == number]
            run, given = _recorded(trained, source, own, BUDGET / len(self.trained))
            if inputs and given.text != inputs[0].text:
                raise ValueError(
                    f"item {source.item} of the part {source.part} of {run.name} is another text "
                    f"than that of {runs[0].name}, as the runs have other data; give a text"
                )
            runs.append(run)
            inputs.append(given)
        return Payload(
            title=" and ".join(run.name for run in runs),
            served=served,
            item=inputs[0].item,
            text=inputs[0].text,
            note=inputs[0].note,
            target=source.target,
            takes_text=self.task not in _WITHOUT_TEXT,
            takes_target=self.task == "translation",
            runs=runs,
            command=command,
        )

    def _check(self, source: Source) -> None:
        """Raises `ValueError` if a task reads no such input."""
        if source.target is not None and self.task != "translation":
            raise ValueError(
                f"target is given, but a run of {self.task} translates nothing; leave it out"
            )
        if source.text is not None and self.task in _WITHOUT_TEXT:
            raise ValueError(
                f"text is {source.text!r}, but a run of {self.task} reads no text; give "
                f"{_WITHOUT_TEXT[self.task]} with --input, or an item with --item"
            )


def _recorded(
    trained: Trained, source: Source, asked: Sequence[Asked], budget: float
) -> tuple[Run, Input]:
    model, task = trained.model, trained.recipe.task
    possible = list(_possible_ablations(model))
    ablations = [_chosen(possible, each) for each in asked]
    paths = [each.path for each in ablations]
    if len(set(paths)) < len(paths):
        raise ValueError(f"ablations are of {', '.join(paths)}, expected at most one of each")
    with ExitStack() as stack:
        stack.enter_context(ablated(model, trained.recipe.evaluation.ablation))
        for each in ablations:
            stack.enter_context(ablated(model, each.path, each.name, **each.options))
        given = INPUTS[task](trained, source)
        run = recorded_run(trained.name, task, model, given, budget)
    return run.model_copy(update={"ablations": possible, "ablated": ablations}), given


def recorded_run(
    name: str, task: str, model: nn.Module, given: Input, budget: float = BUDGET
) -> Run:
    """Returns what a model does with one input, as the page shows it.

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


def _possible_ablations(model: nn.Module) -> Iterator[Ablation]:
    """The ablations of each system of a model, one for each value of its option."""
    for place in attention_sites(model):
        for name, function in place.module.ablations.items():
            options = ablation_options(function)
            needed = [key for key, option in options.items() if option.default is option.empty]
            if not needed:
                yield Ablation(path=place.path, label=name.replace("-", " "), name=name)
            elif len(needed) == 1:  # which values of several belong together is not declared
                yield from _with_each_value(place, name, needed[0])


def _with_each_value(place: AttentionSite, name: str, option: str) -> Iterator[Ablation]:
    words = name.replace("-", " ")
    removes = name == f"without-{option}"
    for value in place.module.ablation_ranges().get(option, ()):
        yield Ablation(
            path=place.path,
            label=f"{words} {value}" if name.endswith(option) else f"{words}: {option} {value}",
            name=name,
            options={option: value},
            unit=value if removes and option == place.module.words.unit else None,
            head=value if removes and option == "head" else None,
        )


def _chosen(possible: Sequence[Ablation], asked: Asked) -> Ablation:
    """The one of the possible ablations that is asked for."""
    of_path = [each for each in possible if each.path == asked.path]
    if not of_path:
        known = ", ".join(dict.fromkeys(each.path for each in possible)) or "none"
        raise ValueError(f"the path of an ablation is {asked.path!r}, expected one of {known}")
    for each in of_path:
        if (each.name, each.options) == (asked.name, asked.options):
            return each
    labels = ", ".join(each.label for each in of_path)
    raise ValueError(
        f"the ablation of {asked.path} is {asked.name!r} with {asked.options}, expected one of "
        f"{labels}"
    )
