"""One system of a recipe, trained and evaluated, whatever the task."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headwise.analysis.cost import count_parameters, model_cost
from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.places import Place, places_of
from headwise.analysis.decisions.snapshots import (
    DecisionCourse,
    Snapshots,
    decides,
    record_attention,
)
from headwise.analysis.results import Course, EarlyStop, RunResult
from headwise.analysis.words import words_of
from headwise.files import write_text
from headwise.models.inspect import ablated
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.recipe import Recipe
from headwise.runs.evaluating import (
    TEST,
    evaluate,
    fitting,
    loss_of_part,
    mend_outputs,
    read_outcome,
    with_tests,
    without_rows,
    write_outcome,
)
from headwise.runs.folder import RESULT, is_writer, machines_are_apart
from headwise.runs.model_card import CARD, write_card
from headwise.runs.preparing import batches, build_model, check_start, claim_folder
from headwise.runs.reading import DamagedError, check_model, discard, read_result
from headwise.runs.running import PlannedRun
from headwise.tasks.scores import Outcome
from headwise.tasks.task import Task
from headwise.training.processes import everywhere, own_draws
from headwise.training.run import MODEL, Run, run_training, threads_of_run


def train_system(
    recipe: Recipe, name: str, folder: Path, task: Task, console: Console
) -> RunResult:
    """Trains and evaluates one system of a recipe in a folder; see `PlannedRun.train`."""
    return SystemRun(recipe, name, folder, task, name).train(console)


class SystemRun(PlannedRun[RunResult]):
    """A run of a system, which is evaluated when it is trained."""

    def train(self, console: Console) -> RunResult:
        claim_folder(self.folder, self.recipe)
        check_start(self.folder, self.recipe)
        finished = self.finished(console)
        if finished is not None:
            return finished
        with threads_of_run(self.folder, self.label, console):
            return _train_and_evaluate(self, console)

    def finished(self, console: Console) -> RunResult | None:
        """Returns the result with the scores on all further test sets; see `PlannedRun`."""
        folder, model = self.folder, self.folder / MODEL
        found = self._stored(console)
        if not everywhere(found is not None):  # of several machines one may have been killed before
            return None
        assert found is not None
        known, outcome = found
        mend_outputs(outcome, self, console)
        result = with_tests(known, self, console)
        is_complete = result is known and (model / CARD).is_file()
        if is_writer() and model.is_dir() and not is_complete:
            write_card(folder, self.task, self.recipe, result)
        return result

    def _stored(self, console: Console) -> tuple[RunResult, Outcome] | None:
        """The result and the outcome that the folder has, if it has both undamaged."""
        folder = self.folder
        if not (folder / RESULT).is_file():
            return None
        claim_folder(folder, self.recipe)  # which may name other test sets than before
        check_model(folder)
        try:
            return read_result(folder / RESULT), read_outcome(folder)
        except DamagedError as error:
            self.warn(console, f"{error.problem}: the run is evaluated again")
            discard(folder / RESULT)
            return None


def _train_and_evaluate(planned: PlannedRun[RunResult], console: Console) -> RunResult:
    recipe, folder, task = planned.recipe, planned.folder, planned.task
    run = train_model(planned, console, snapshots=recipe.training.snapshots)
    assert isinstance(run.model, HeadwiseModel)
    model = run.model
    outcome = evaluate(model, task, TEST, recipe.evaluation, console, planned.label)
    snapshots = decision_courses(model, run.history)
    lengths = task.cost_lengths(recipe)
    result = RunResult(
        system=planned.system,
        seed=recipe.training.seed,
        parameters=count_parameters(model),
        trained_parameters=None if recipe.training.train == "all" else run.trained_parameters,
        macs=model_cost(model.config, lengths).macs,
        macs_lengths=lengths,
        steps=run.steps,
        early_stop=EarlyStop(planned_steps=run.planned_steps, best_step=run.best_step)
        if run.stopped_early
        else None,
        seconds=run.history[-1]["seconds"],
        threads=list(dict.fromkeys(r["threads"] for r in run.history if "threads" in r)),
        validation_loss=loss_of_part(model, task, "validation", recipe.training),
        history=curves(run.history),
        scores=without_rows(outcome.scores),
        attention=record_attention(model, batches(task, TEST, recipe.training), snapshots),
        courses=courses_of(model, run.history),
        snapshots=snapshots,
        words=words_of(model),
    )
    if is_writer():
        write_outcome(outcome, folder, task)
        write_text(folder / RESULT, result.model_dump_json(indent=1))
    result = with_tests(result, planned, console)
    if is_writer():
        write_card(folder, task, recipe, result)
    return result


def train_model(planned: PlannedRun[Any], console: Console, *, snapshots: bool = False) -> Run:
    """Trains the model of a run; nothing is evaluated but the validation loss.

    With `snapshots` it is noted what its systems decide at each validation.
    """
    recipe, task = planned.recipe, planned.task
    for part in ("validation", TEST):
        batches(task, part, recipe.training)  # too long for batch_tokens: found before training
    model = build_model(recipe, task)
    with own_draws(), ablated(model, fitting(model, recipe.evaluation.ablation)):
        pass  # one that does not fit the model: found before training, whose draws stay the same
    takes_snapshots = snapshots and decides(model)
    return run_training(
        model,
        task.parts["train"],
        task.parts["validation"],
        task.collate,
        recipe.training,
        planned.folder,
        save_beside=task.save,
        measure=task.monitor,
        snapshot=Snapshots(task, recipe.training.batch_tokens) if takes_snapshots else None,
        label=planned.label,
        console=console,
        saves_on_each_machine=machines_are_apart(),
    )


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
    records = [(record["step"], record.get("recorded", {})) for record in history]
    by_path = [
        (step, {path: made for of_rule in found.values() for path, made in of_rule.items()})
        for step, found in records
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
