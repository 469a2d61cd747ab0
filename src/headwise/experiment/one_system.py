"""One system of a recipe, trained and evaluated, whatever the task."""

from pathlib import Path

import torch
from rich.console import Console

from headwise.analysis.behaviour.snapshots import Snapshots, decides
from headwise.analysis.cost import count_macs, count_parameters
from headwise.analysis.recording import record_attention
from headwise.analysis.results import EarlyStop, RunResult
from headwise.checksums import write_summed
from headwise.experiment.folders import RESULT, check_start, claim_folder, is_main_process
from headwise.experiment.history import courses_of, curves, decision_courses
from headwise.experiment.model_folder import write_for_tools
from headwise.experiment.outcomes import (
    evaluate,
    mend_outputs,
    read_outcome,
    with_tests,
    write_outcome,
)
from headwise.experiment.preparing import batches, build_model
from headwise.experiment.reading import DamagedError, check_model, discard, read_result
from headwise.models.ablation import ablated
from headwise.models.base import HeadwiseModel
from headwise.models.decisions import words_of
from headwise.recipe.settings import Recipe
from headwise.tasks.task import Task
from headwise.training.run import MODEL, Run, run_training, threads_of_run
from headwise.training.validation import validation_loss


def train_system(
    recipe: Recipe, name: str, folder: Path, task: Task, console: Console, label: str = ""
) -> RunResult:
    """Train and evaluate one system in `folder`, from wherever an earlier start got to.

    Args:
        recipe: of the system.
        name: of the system.
        folder: of the run.
        task: the recipe's data.
        console: for the bars.
        label: what they call the run; by default the name.

    Raises:
        FolderError: the folder is that of another run.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    claim_folder(folder, recipe)
    check_start(folder, recipe)
    finished = finished_result(recipe, folder, task, console, label or name)
    if finished is not None:
        return finished
    if is_main_process():
        task.save(folder)
    with threads_of_run(folder, label or name, console):
        return _train_and_evaluate(recipe, name, folder, task, console, label or name)


def _train_and_evaluate(
    recipe: Recipe, name: str, folder: Path, task: Task, console: Console, label: str
) -> RunResult:
    run = train_model(recipe, folder, task, console, label, snapshots=recipe.training.snapshots)
    assert isinstance(run.model, HeadwiseModel)
    model = run.model
    outcome = evaluate(model, task, task.test, recipe.evaluation, console, label)
    snapshots = decision_courses(model, run.history)
    held_out = batches(task, task.test, recipe.training)
    result = RunResult(
        system=name,
        seed=recipe.training.seed,
        parameters=count_parameters(model),
        trained_parameters=None if recipe.training.train == "all" else run.trained_parameters,
        macs=count_macs(model, task.cost_lengths(recipe)),
        macs_lengths=task.cost_lengths(recipe),
        steps=run.steps,
        early_stop=EarlyStop(planned_steps=run.planned_steps, best_step=run.best_step)
        if run.stopped_early
        else None,
        seconds=run.history[-1]["seconds"],
        threads=list(dict.fromkeys(r["threads"] for r in run.history if "threads" in r)),
        validation_loss=validation_loss(model, batches(task, task.validation, recipe.training)),
        history=curves(run.history),
        scores=outcome.scores,
        attention=record_attention(model, held_out, snapshots),
        courses=courses_of(model, run.history),
        snapshots=snapshots,
        words=words_of(model),
    )
    if is_main_process():
        write_outcome(outcome, folder, task)
        write_summed(folder / RESULT, result.model_dump_json(indent=1))
    result = with_tests(result, recipe, folder, task, console, label)
    if is_main_process():
        write_for_tools(folder, task, recipe, result)
    return result


def train_model(
    recipe: Recipe,
    folder: Path,
    task: Task,
    console: Console,
    label: str,
    *,
    snapshots: bool = False,
) -> Run:
    """Trains the model of a recipe in `folder`; nothing is evaluated but the validation loss.

    Args:
        recipe, folder, task, console, label: as in `train_system`.
        snapshots: whether to note what its systems decide at each validation.

    Raises:
        ValueError: a sequence is too long for `batch_tokens` or for the model's positions, or an
            ablation of the recipe does not fit the model.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    for part in (task.validation, task.test):
        batches(task, part, recipe.training)  # too long for batch_tokens: found before training
    task.check_positions(task.model_config(recipe.model))
    model = build_model(recipe, task)
    with torch.random.fork_rng(), ablated(model, recipe.evaluation.ablation):
        pass  # one that does not fit the model: found before training, whose draws stay the same
    takes_snapshots = snapshots and decides(model)
    return run_training(
        model,
        task.train,
        task.validation,
        task.collate,
        recipe.training,
        folder,
        measure=task.measure,
        snapshot=Snapshots(task, recipe.training.batch_tokens) if takes_snapshots else None,
        label=label,
        console=console,
    )


def finished_result(
    recipe: Recipe, folder: Path, task: Task, console: Console, label: str
) -> RunResult | None:
    """Returns the result of a run, or None while it is not finished.

    It has the scores on all further test sets, on which the run is evaluated if need be. A damaged
    result is removed, so that the run is evaluated again; outputs and pictures that are not those
    of the result are written again. The arguments are those of `train_system`.

    Raises:
        FolderError: the folder is that of another run, or its final model is missing or damaged.
    """
    if not (folder / RESULT).is_file():
        return None
    claim_folder(folder, recipe)  # which may name other test sets than before
    check_model(folder)
    try:
        known = read_result(folder / RESULT)
        outcome = read_outcome(folder)
    except DamagedError as error:
        discard(folder / RESULT, error, console, label, "the run is evaluated again")
        return None
    mend_outputs(outcome, folder, console, label)
    result = with_tests(known, recipe, folder, task, console, label)
    changed = result is not known and (folder / MODEL).is_dir()
    if is_main_process() and changed:
        write_for_tools(folder, task, recipe, result)
    return result
