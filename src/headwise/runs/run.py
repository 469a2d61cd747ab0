"""One run: it trains and evaluates what the recipe of its folder says, or goes on where it was."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console
from transformers import set_seed

from headwise.analysis.cost import count_parameters, model_cost
from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.places import Place, places_of
from headwise.analysis.decisions.snapshots import (
    AttentionRecord,
    DecisionCourse,
    Snapshots,
    decides,
    record_attention,
)
from headwise.analysis.results import Course, EarlyStop, RunResult
from headwise.analysis.words import words_of
from headwise.data.divide import Facts
from headwise.data.stream import Stream, StreamBatches
from headwise.files import write_text
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.pretrained import digest_weights
from headwise.recipes.recipe import Recipe, task_class
from headwise.runs.card import write_card
from headwise.runs.evaluate import (
    TEST,
    as_evaluated,
    evaluate,
    evaluate_tests,
    loss_of_part,
    without_rows,
    write_outcome,
)
from headwise.runs.folder import check_inputs, locked, read_model, read_recipe, read_result
from headwise.runs.names import ENCODER, MODEL, RESULT, FolderError
from headwise.tasks.scores import Score
from headwise.tasks.task import Task
from headwise.training.batches import Batches
from headwise.training.checkpoints import write_model
from headwise.training.part import count_trained, freeze_all_but
from headwise.training.settings import TrainingSettings
from headwise.training.trainer import Progress, Trainer, accelerator_for


def train_run(folder: Path, console: Console, *, task: Task | None = None) -> RunResult | None:
    """Trains and evaluates the run of a folder, which `claim` has made, from wherever it got to.

    All processes of `torchrun` call this; when the model is trained, the main one works alone.

    Args:
        folder: of the run; its `recipe.yaml` says all.
        console: for the bar and for notes.
        task: the data of the recipe, if they have been read already.

    Returns:
        The result; None in the other processes of `torchrun`.

    Raises:
        FolderError: another process is at work in the folder, or the data have changed.
        Interrupted: Ctrl-C or SIGTERM came; the next call goes on.
    """
    recipe = read_recipe(folder, keys=())
    accelerator = accelerator_for(recipe.training, folder)
    is_main = accelerator.is_main_process
    console.quiet = console.quiet or not is_main
    with locked(folder) if is_main else nullcontext():
        with accelerator.local_main_process_first():  # others find what it has encoded
            task = task or prepare(folder, recipe, console)
        trained_on = digests(recipe, task)
        if gather_object([trained_on]) != [trained_on] * accelerator.num_processes:
            raise FolderError(f"the processes that share {folder} have different data")
        if is_main:
            check_inputs(folder, **trained_on)
        known = read_result(folder)
        try:
            if known is None:
                progress = _train(folder, recipe, task, accelerator, console)
            accelerator.wait_for_everyone()
        finally:
            accelerator.end_training()  # of loggers, and of what processes do together
        if not is_main:
            return None
        result = known or _evaluated(folder, recipe, task, progress, console)
        if recipe.evaluation.test:
            result = evaluate_tests(folder, recipe, task, result, console)
        if result != known:
            write_text(folder / RESULT, result.model_dump_json(indent=1))
        if result.scores and (folder / MODEL).is_dir():
            write_card(folder, task, recipe, result)
        return result


def prepare(folder: Path, recipe: Recipe, console: Console) -> Task:
    """Reads the data of a recipe, and says what they are.

    They are encoded as by the model that the folder has, or as by the encoder that its comparison
    has put there. Without either, what encodes them is learned, and stands in the cache for a run
    that goes on.
    """
    of_run = [folder / name for name in (MODEL, ENCODER) if (folder / name).is_dir()]
    task = task_class(recipe.task)(recipe, next(iter(of_run), None))
    for line in lines_of(task.facts):
        console.print(line, style="dim", highlight=False, markup=False)
    return task


def digests(recipe: Recipe, task: Task) -> dict[str, str]:
    """Returns the digests of what a run is trained on, for `check_inputs`."""
    start = recipe.pretrained_folder()
    # That the weights are gone is told when the model is made; a finished run does without.
    is_there = start is not None and start.is_dir()
    weights = {"pretrained": digest_weights(start)} if start is not None and is_there else {}
    return {"data": task.digest(), **weights}


def build_model(recipe: Recipe, task: Task) -> HeadwiseModel:
    """Returns the model of a recipe: initialised from its seed, or the one that it starts from."""
    set_seed(recipe.training.seed)
    model = task.build_model(recipe)
    freeze_all_but(model, recipe.training.train)
    return model


def batches(
    task: Task,
    part: str,
    settings: TrainingSettings,
    *,
    seed: int | None = None,
    rank: int = 0,
    world: int = 1,
) -> Batches | StreamBatches:
    """Returns the batches of one process of a part of the data; in a fixed order without a seed."""
    items = task.parts[part]
    collate, budget = task.collate, settings.batch_tokens
    if isinstance(items, Stream):
        return items.batches(collate, budget, seed=seed or 0, rank=rank, world=world)
    workers = settings.loader_workers
    return Batches(items, collate, budget, seed=seed, rank=rank, world=world, workers=workers)


def _train(
    folder: Path, recipe: Recipe, task: Task, accelerator: Accelerator, console: Console
) -> Progress:
    """Trains the model, from the last checkpoint if there is one, and writes it to `model/`."""
    settings = recipe.training
    share = {"rank": accelerator.process_index, "world": accelerator.num_processes}
    train = batches(task, "train", settings, seed=settings.seed, **share)
    validation = cast(Batches, batches(task, "validation", settings, **share))  # never a stream
    batches(task, TEST, settings)  # too long for batch_tokens: found before training
    model = build_model(recipe, task)
    kind = type(model)  # another one when processes divide it
    with as_evaluated(model, recipe.evaluation, console, recipe.system):
        pass  # an ablation that does not fit the model: found before training
    takes_snapshots = settings.snapshots and decides(model)
    trainer = Trainer(
        model,
        train,
        validation,
        settings,
        folder,
        accelerator,
        measure=task.monitor,
        snapshot=Snapshots(task, settings.batch_tokens) if takes_snapshots else None,
        label=folder.resolve().name,
        console=console,
    )
    progress = trainer.fit()
    if accelerator.is_main_process and not (folder / MODEL).is_dir():
        write_model(kind, settings, folder, task.save)
    accelerator.wait_for_everyone()
    return progress


def _evaluated(
    folder: Path, recipe: Recipe, task: Task, progress: Progress, console: Console
) -> RunResult:
    """Evaluates the final model of a run, and returns its result."""
    model, settings = read_model(folder), recipe.training
    freeze_all_but(model, settings.train)
    scores: list[Score] = []
    attention: list[AttentionRecord] = []
    snapshots = decision_courses(model, progress.history)
    if recipe.evaluation.test:
        outcome = evaluate(model, task, TEST, recipe.evaluation, console, folder.resolve().name)
        write_outcome(outcome, folder, task)
        scores = without_rows(outcome.scores)
        test = cast(Batches, batches(task, TEST, settings))
        attention = record_attention(model, test.epoch(), snapshots)
    lengths = task.cost_lengths(recipe)
    stopped = EarlyStop(planned_steps=progress.total, best_step=progress.best_step)
    return RunResult(
        system=recipe.system or "model",
        seed=settings.seed,
        parameters=count_parameters(model),
        trained_parameters=None if settings.train == "all" else count_trained(model),
        macs=model_cost(model.config, lengths).macs,
        macs_lengths=lengths,
        steps=progress.step,
        early_stop=stopped if progress.step < progress.total else None,
        seconds=progress.seconds,
        validation_loss=loss_of_part(model, task, "validation", settings),
        history=curves(progress.history),
        scores=scores,
        attention=attention,
        courses=courses_of(model, progress.history),
        snapshots=snapshots,
        words=words_of(model),
    )


def lines_of(facts: Facts) -> list[str]:
    """Returns facts about data as lines of text.

    >>> lines_of({"train": {"rows": 1200, "SHA-256": "52ab"}})
    ['train: rows 1,200, SHA-256 52ab']
    """

    def shown(value: int | str) -> str:
        return f"{value:,}" if isinstance(value, int) else value

    return [
        f"{part}: " + ", ".join(f"{name} {shown(value)}" for name, value in of_part.items())
        for part, of_part in facts.items()
    ]


def curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Returns the losses and what was measured, by step."""
    kept = ("step", "loss", "eval_loss", "seconds")
    return [
        {key: record[key] for key in kept if key in record} | record.get("measured", {})
        for record in history
        if "loss" in record or "eval_loss" in record
    ]


def courses_of(model: HeadwiseModel, history: Sequence[Mapping[str, Any]]) -> list[Course]:
    """Returns what the rules of training recorded of each system; empty without records."""
    by_path = [
        (step, {path: made for of_rule in found.values() for path, made in of_rule.items()})
        for step, found in ((record["step"], record.get("recorded", {})) for record in history)
    ]
    return [
        Course(
            **Where.of(place).model_dump(exclude={"path"}),
            steps=steps,
            values={name: [made[name] for made in found] for name in found[0]},
        )
        for place, steps, found in _by_site(model, by_path)
    ]


def decision_courses(
    model: HeadwiseModel, history: Sequence[Mapping[str, Any]]
) -> list[DecisionCourse]:
    """Returns how the decisions of each system moved, from the snapshots; empty without any."""
    snapshots = [(record["step"], record.get("snapshot", {})) for record in history]
    measured = ("entropy", "lowest_entropy", "shares", "weights")
    return [
        DecisionCourse(
            **Where.of(place).model_dump(),
            uniform=math.log(found[-1]["candidates"]),
            steps=steps,
            **{name: [each[name] for each in found] for name in measured},
            explained={
                label: [each["explained"].get(label) for each in found]
                for label in found[-1]["explained"]
            },
        )
        for place, steps, found in _by_site(model, snapshots)
    ]


def _by_site(
    model: HeadwiseModel, records: Sequence[tuple[int, Mapping[str, Any]]]
) -> Iterator[tuple[Place, list[int], list[Any]]]:
    """Yields each system that the records mention: its site, the steps, and what they say of it."""
    for place in places_of(model):
        of_place = [(step, found[place.path]) for step, found in records if place.path in found]
        if of_place:
            steps, found = zip(*of_place, strict=True)
            yield place, list(steps), list(found)
