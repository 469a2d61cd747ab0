"""Models at work on one input, recorded for the page, as they are or with units removed."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.ablations.declared import fewer_units, units_of
from headwise.analysis.decisions import places
from headwise.analysis.decisions.observing import Where, scaled
from headwise.analysis.words import words_of
from headwise.heads.ablation import option_of
from headwise.heads.attention import Read
from headwise.heads.system import Routing
from headwise.models.inspect import ablated, evaluating, observe, record
from headwise.pretrained.gates import observed
from headwise.pretrained.watch import attention_noted
from headwise.report.explorer.inputs import (
    Input,
    Plain,
    Source,
    Trained,
    image_input,
    speech_input,
)
from headwise.report.explorer.payload import (
    Ablation,
    Asked,
    Attention,
    Blob,
    Payload,
    Place,
    Question,
    Run,
    Stack,
)
from headwise.report.explorer.texts import plain_input, text_input
from headwise.report.plain_models import check_finite, open_plain, task_of
from headwise.runs.folder import distinct_names, read_model, read_recipe
from headwise.runs.names import is_plain

Decides = Literal["position", "sequence", "everything", "nothing"]

# Letters that all attention of a page is to take, unless even the coarsest steps take more. Without
# a budget, 144 heads over 512 tokens would take 30 million, more than a browser reads in the blink
# of an eye.
BUDGET = 9_000_000
_LEVELS = (3, 5, 7, 11, 15, 31, 63, 127, 255)
# Attention weights that a browser can hold, of which it inflates those that are looked at.
_MOST = 150_000_000
# Tasks whose input is not a text.
_INPUTS: dict[str, Callable[[Trained, Source], Input]] = {
    "images": image_input,
    "speech-enhancement": speech_input,
}
_WITHOUT_TEXT = {"images": "an image", "speech-enhancement": "a WAV or FLAC file"}


class Explorer:
    """Models of finished runs, or of transformers, that read the same inputs."""

    def __init__(self, runs: Sequence[Path], source: Source, changes: Sequence[str] = ()) -> None:
        self.source = source
        self.trained: list[Trained | Plain] = []
        for folder, name in zip(runs, distinct_names(runs), strict=True):
            if is_plain(folder):
                if changes:
                    raise ValueError(f"--set is given, but {folder} is no run: it has no recipe")
                self.trained.append(Plain(name, *open_plain(folder)))
                continue
            recipe, model = read_recipe(folder, changes, keys=("evaluation",)), read_model(folder)
            check_finite(folder, model)
            self.trained.append(Trained(name, folder, recipe, model))
        tasks = {trained.name: _task(trained) for trained in self.trained}
        if len(set(tasks.values())) > 1:
            each = ", ".join(f"{name} of {task}" for name, task in tasks.items())
            raise ValueError(
                f"the models are of different tasks ({each}), expected those of one task: they are "
                f"shown side by side on the same input"
            )
        self.task = tasks[self.trained[0].name]

    def answer(self, question: Question) -> Payload:
        """Returns what the page asks a server for."""
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
            if given.item is not None and inputs and given.text != inputs[0].text:
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
                f"target is given, but a model of {self.task} translates nothing; leave it out"
            )
        if source.text is not None and self.task in _WITHOUT_TEXT:
            raise ValueError(
                f"text is {source.text!r}, but a run of {self.task} reads no text; give "
                f"{_WITHOUT_TEXT[self.task]} with --input, or an item with --item"
            )


def _task(trained: Trained | Plain) -> str:
    return trained.recipe.task if isinstance(trained, Trained) else task_of(trained.model)


def _recorded(
    trained: Trained | Plain, source: Source, asked: Sequence[Asked], budget: float
) -> tuple[Run, Input]:
    model, task = trained.model, _task(trained)
    with ExitStack() as stack:
        stack.enter_context(observed(model))
        possible = list(_possible_ablations(model))
        ablations = [_chosen(possible, each) for each in asked]
        paths = [each.path for each in ablations]
        if len(set(paths)) < len(paths):
            raise ValueError(f"ablations are of {', '.join(paths)}, expected at most one of each")
        if isinstance(trained, Trained):
            stack.enter_context(ablated(model, trained.recipe.evaluation.ablation))
        for each in ablations:
            stack.enter_context(ablated(model, each.path, each.name, **each.options))
        if isinstance(trained, Plain):
            given = plain_input(trained, source)
        else:
            given = _INPUTS.get(task, text_input)(trained, source)
        run = recorded_run(trained.name, task, model, given, budget)
    return run.model_copy(update={"ablations": possible, "ablated": ablations}), given


def recorded_run(
    name: str, task: str, model: nn.Module, given: Input, budget: float = BUDGET
) -> Run:
    """Returns what a model does with one input, as the page shows it."""
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
    for place in places.places_of(model):
        for name in place.module.edits:
            option = option_of(name)
            if option in (None, "seed"):
                yield Ablation(path=place.path, label=name.replace("-", " "), name=name)
                continue
            for value in fewer_units(place) if option == "top_k" else units_of(name, place):
                yield _with_value(place, name, str(option), value)


def _with_value(place: places.Place, name: str, option: str, value: int) -> Ablation:
    removes = name == f"without-{option}"
    words = "top" if option == "top_k" else name.replace("-", " ")
    return Ablation(
        path=place.path,
        label=f"{words} {value}",
        name=name,
        options={option: value},
        unit=value if removes and option == place.module.unit else None,
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


# What the systems do in one pass, as few bytes


class Reading(NamedTuple):
    """How the heads of one attention have read in its last call."""

    is_cross: bool  # whether its keys are of something else than its queries
    weights: Tensor  # `(heads, queries, keys)` of the first sequence


class Watched(NamedTuple):
    """What one system has done in one pass; `readings` by the attention's path in the system."""

    place: places.Place
    routing: Routing | None
    readings: dict[str, Reading]


@torch.no_grad()
def watch(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Any, list[Watched]]:
    """Runs a model once in evaluation mode on a batch of one sequence."""
    whole = places.places_of(model)
    readings: dict[str, dict[str, Reading]] = {place.path: {} for place in whole}
    system_of = {part.path: system for part, system in places.attentions_of(model).items()}

    def note_given(path: str, weights: Tensor) -> None:
        is_cross = system_of[path].site == "decoder_cross"
        readings[path][""] = Reading(is_cross, weights[0].float().cpu())

    def note(path: str, read: Read) -> None:
        # Over heads of another module, a system knows neither its queries nor its keys.
        if getattr(read.attention, "heads_are_given", False):
            return
        system = system_of[path].path
        name = path.removeprefix(system).removeprefix(".")
        # Of the first sequence alone: the weights of a batch would take much memory.
        mask = read.mask[:1] if read.mask is not None and read.mask.dim() == 4 else read.mask
        first = read._replace(q=read.q[:1], k=read.k[:1], mask=mask)
        is_cross = not read.inputs.is_self_attention
        readings[system][name] = Reading(is_cross, first.weights()[0].float().cpu())

    with (
        evaluating(model),
        record(model) as decided,
        observe(model, note),
        attention_noted(model, note_given),
    ):
        output = model(**inputs)
    routings = {path: made[-1] for path, made in decided.items()}
    return output, [
        Watched(place, routings.get(place.path), readings[place.path]) for place in whole
    ]


def check_size(model: nn.Module, stacks: Mapping[str, Stack]) -> None:
    """Raises `ValueError` if no browser could hold the attention of a model over its input."""
    longest = max(len(stack.tokens) for stack in stacks.values())
    heads = sum(place.module.num_heads for place in places.attentions_of(model))
    if heads * longest**2 > _MOST:
        raise ValueError(
            f"the input has {longest:,} positions, over which the {heads} heads of the model have "
            f"{heads * longest**2:,} attention weights, expected at most {_MOST:,}; give a shorter "
            f"input"
        )


def recorded_places(
    watched: Sequence[Watched], stacks: Mapping[str, Stack], budget: float = BUDGET
) -> list[Place]:
    """Returns what each system of a model has done in one pass, for the page.

    Attention weights keep steps of 1/255 of the largest of a head if all of them together are few,
    as for some hundred tokens, or compress well, as where heads look at single tokens. Of others
    the steps are coarser.
    """
    read = [reading for seen in watched for reading in seen.readings.values()]
    share = budget / max(1, sum(reading.weights.numel() for reading in read))
    return [_place(seen, stacks, share) for seen in watched]


def _place(seen: Watched, stacks: Mapping[str, Stack], share: float) -> Place:
    place = seen.place
    stack = place.stack if place.stack in stacks else next(iter(stacks))
    weights, decides, chosen = _decisions(seen.routing)
    units = 0 if weights is None else weights.shape[1]
    unit = place.module.unit
    return Place(
        **Where.of(place).model_dump(),
        stack=stack,
        decides=decides,
        units=units,
        unit_names=[f"{unit} {number}" for number in range(units)],
        weights=None if weights is None else Blob.of(weights),
        chosen=chosen,
        attentions=[
            _attention(name, reading, place, units, stack, stacks, share)
            for name, reading in seen.readings.items()
        ],
    )


def _decisions(
    routing: Routing | None,
) -> tuple[np.ndarray | None, Decides, list[list[int]] | None]:
    """The weights, rows of sum 1, what each row holds for, and what was chosen at each position."""
    if routing is None:
        return None, "nothing", None
    weights = scaled(routing.weights).cpu()
    if weights.dim() == 3:
        chosen = None if routing.indices is None else routing.indices[0].tolist()
        return weights[0].numpy(), "position", chosen
    if weights.dim() == 2:
        return weights[:1].numpy(), "sequence", None
    return weights.unsqueeze(0).numpy(), "everything", None


def _attention(
    name: str,
    reading: Reading,
    place: places.Place,
    units: int,
    stack: str,
    stacks: Mapping[str, Stack],
    share: float,
) -> Attention:
    _, queries, keys = reading.weights.shape
    if queries != len(stacks[stack].tokens):
        raise ValueError(
            f"the system {place.path!r} reads {queries} positions, expected "
            f"{len(stacks[stack].tokens)}: one for each token of the input"
        )
    source: str | None = stack
    if reading.is_cross:
        source = next((name for name in stacks if name != stack), None)
    if source is not None and len(stacks[source].tokens) != keys:
        source = None
    return Attention(
        name=name,
        queries=stack,
        keys=source,
        heads=[_packed(head.numpy(), share * head.numel()) for head in reading.weights],
        unit_of_head=_unit_of_head(place.module, len(reading.weights), units),
    )


def _unit_of_head(system: Any, heads: int, units: int) -> list[int] | None:
    """The unit of each head where units have heads of their own, in their order; else None."""
    own = system.unit in ("head", "branch", "mechanism") and units and heads % units == 0
    return [head * units // heads for head in range(heads)] if own else None


def _packed(head: np.ndarray, most: float) -> Blob:
    """The weights of a head, in as many steps as let it take about so many letters at most."""
    sample = head[:: 1 if len(head) < 64 else 4]
    signed = bool(head.min(initial=0.0) < 0)  # as of differential attention

    def size(levels: int) -> float:
        blob = Blob.of(sample, levels=levels, power=2, signed=signed)
        return len(blob.data) * len(head) / len(sample)

    levels = _LEVELS[-1]
    if 4 / 3 * head.size > most and size(levels) > most:  # base64 makes four letters of three bytes
        fitting = bisect_right(_LEVELS[:-1], most, key=size)
        levels = _LEVELS[max(0, fitting - 1)]
    # Of √w the steps are even: those of w are finest near 0, where most weights are.
    return Blob.of(head, levels=levels, power=2, signed=signed)
