"""One run: the recipe of its folder is trained, from the last checkpoint, and evaluated."""

from contextlib import nullcontext
from pathlib import Path
from typing import cast

from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console
from transformers import set_seed

from headwise.analysis.cost import count_parameters, model_cost
from headwise.analysis.metrics import decision_monitor
from headwise.analysis.results import RunResult
from headwise.data.splits import format_facts
from headwise.data.stream import Stream, StreamBatches
from headwise.files import write_text
from headwise.heads.attention import MultiHeadAttention
from headwise.models.inspect import find_systems, layer_label
from headwise.models.modeling import HeadwiseModel
from headwise.models.parameters import freeze_all_but
from headwise.recipes.pretrained import digest_weights
from headwise.recipes.recipe import Recipe, task_class
from headwise.runs.evaluate import applied_ablations, with_scores
from headwise.runs.folder import check_inputs, locked, read_model, read_recipe, read_result
from headwise.runs.names import ENCODER, MODEL, RESULT, FolderError
from headwise.tasks.task import Task
from headwise.training.batches import Batches
from headwise.training.checkpoints import write_model
from headwise.training.console import say
from headwise.training.loss import mean_loss
from headwise.training.settings import TrainingSettings
from headwise.training.trainer import Trainer, TrainingState, accelerator_for


def train_run(folder: Path, console: Console, *, task: Task | None = None) -> RunResult | None:
    """Trains and evaluates a run, from its last checkpoint if it has one.

    All processes of `torchrun` call this; when the model is trained, the main one works alone.

    Args:
        folder: of the run, which `init_run_folder` has made.
        console: for the bar and for notes.
        task: the data of the recipe, if they have been read already.

    Returns:
        The result; None in the other processes of `torchrun`.

    Raises:
        FolderError: another process works in the folder, or the data have changed.
        Interrupted: Ctrl-C or SIGTERM came; the next call resumes.
    """
    recipe = read_recipe(folder, keys=())
    accelerator = accelerator_for(recipe.training, folder)
    is_main = accelerator.is_main_process
    console.quiet = console.quiet or not is_main
    with locked(folder) if is_main else nullcontext():
        with accelerator.local_main_process_first():  # it fills the cache of the others
            task = task or _read_data(folder, recipe, console)
        digests = [task.content_hash()]
        pretrained_folder = recipe.pretrained_folder()
        if pretrained_folder is not None and pretrained_folder.is_dir():  # finished runs do without
            digests.append(digest_weights(pretrained_folder))
        if gather_object([digests]) != [digests] * accelerator.num_processes:
            raise FolderError(f"the processes that share {folder} have different data")
        if is_main:
            check_inputs(folder, *digests)
        known = read_result(folder)
        try:
            if known is None:
                progress = _train(folder, recipe, task, accelerator, console)
            accelerator.wait_for_everyone()
        finally:
            accelerator.end_training()  # closes loggers and the group of processes
        if not is_main:
            return None
        result = known or _collect_result(folder, recipe, task, progress)
        if recipe.evaluation.test:
            result = with_scores(result, folder, recipe, task, console, is_new=known is None)
        if result != known:
            write_text(folder / RESULT, result.model_dump_json(indent=1))
        return result


def _read_data(folder: Path, recipe: Recipe, console: Console) -> Task:
    """Reads the data of a recipe, and prints facts about them.

    The encoder is that of the model in the folder, or the one that its comparison has put there.
    Without either it is learned, and is in the cache for a run that resumes.
    """
    encoders = [folder / name for name in (MODEL, ENCODER) if (folder / name).is_dir()]
    task = task_class(recipe.task)(recipe, next(iter(encoders), None))
    say(console, "\n".join(format_facts(task.facts)), "dim")
    return task


def batches(
    task: Task, split: str, settings: TrainingSettings, *, seed: int | None = None, **share: int
) -> Batches | StreamBatches:
    """Returns the batches of a split, in a fixed order without a seed.

    Of several processes each has the share of its `rank` of `world`.
    """
    items, collate, budget = task.splits[split], task.collate, settings.batch_tokens
    if isinstance(items, Stream):
        return StreamBatches(items, collate, budget, seed=seed or 0, **share)
    return Batches(items, collate, budget, seed=seed, workers=settings.loader_workers, **share)


def _train(
    folder: Path, recipe: Recipe, task: Task, accelerator: Accelerator, console: Console
) -> TrainingState:
    """Trains the model, from the last checkpoint if there is one, and writes it to `model/`."""
    settings = recipe.training
    share = {"rank": accelerator.process_index, "world": accelerator.num_processes}
    train = batches(task, "train", settings, seed=settings.seed, **share)
    validation = cast(Batches, batches(task, "validation", settings, **share))  # never a stream
    set_seed(settings.seed)
    model = task.build_model(recipe)
    freeze_all_but(model, settings.trainable)
    model_class = type(model)  # FSDP changes the class
    with applied_ablations(model, recipe.evaluation, console, recipe.system or "the model"):
        pass  # what does not fit the model is said before the training
    has_decisions = settings.record_decisions and _units(model)
    monitor = decision_monitor(task, settings.batch_tokens) if has_decisions else lambda model: {}
    progress = Trainer(
        model,
        train,
        validation,
        settings,
        folder,
        accelerator,
        measure=lambda model: task.monitor(model) | monitor(model),
        label=folder.resolve().name,
        console=console,
    ).fit()
    if accelerator.is_main_process and not (folder / MODEL).is_dir():
        write_model(model_class, settings, folder, task.save)
    accelerator.wait_for_everyone()
    return progress


def _collect_result(folder: Path, recipe: Recipe, task: Task, progress: TrainingState) -> RunResult:
    """Returns the result of a trained run without its scores."""
    settings, lengths = recipe.training, task.cost_lengths(recipe)
    model = read_model(folder)
    freeze_all_but(model, settings.trainable)
    trained = None if settings.trainable == "all" else model.num_parameters(only_trainable=True)
    validation = cast(Batches, batches(task, "validation", settings))
    return RunResult(
        system=recipe.system or "model",
        seed=settings.seed,
        parameters=count_parameters(model),
        trained_parameters=trained,
        macs=model_cost(model.config, lengths).macs,
        macs_lengths=lengths,
        steps=progress.step,
        planned_steps=progress.total,
        seconds=progress.seconds,
        validation_loss=mean_loss(model, validation.epoch()),
        history=progress.history,
        units=_units(model),
        scores=[],
    )


def _units(model: HeadwiseModel) -> dict[str, str]:
    """Returns the layer of each system that weighs units, and the kind of its units."""
    return {
        layer_label(path, system): system.unit
        for path, system in find_systems(model).items()
        if type(system) is not MultiHeadAttention  # standard attention weighs nothing
    }
