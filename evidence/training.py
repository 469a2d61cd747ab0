"""Has the runs trained, and the times measured, that claims and questions lack.

Runs are trained in folders of their own, as those of `headwise compare`: they can be stopped at any
time, and go on. What the claims need of a finished run is then kept in the table of the experiment,
and no machine that has the table trains the run again.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from evidence.experiments import Conditions, Places, recipe_hash, wanted_ablations
from evidence.questions import Question
from evidence.results import LOSS, MEASUREMENTS, Run, Times, rows_key, small_rows, thinned
from evidence.tuning import let_choose
from headwise.analysis.ablations.named import parse_ablations
from headwise.analysis.ablations.quality import group_losses
from headwise.analysis.results import RunResult, machine, versions
from headwise.analysis.speed import decoding_speeds
from headwise.models.inspect import ablated, systems
from headwise.recipes.recipe import Recipe
from headwise.runs.compare import ROUNDS, step_times
from headwise.runs.evaluate import evaluate, read_outcome
from headwise.runs.folder import MODEL, RESULT, claim, read_model, read_result, remove_models
from headwise.runs.launching import train_all
from headwise.runs.run import build_model, prepare
from headwise.tasks.scores import Outcome, Score
from headwise.tasks.task import Task

RANDOM_EXPERT = "mae=random-expert"  # of table 5 of the MAE paper

Systems = Mapping[str | None, list[str]]  # name of a data set, or None, to the systems on it


@dataclass(frozen=True)
class AskedRun:
    """One run that a claim or a question asks for."""

    conditions: Conditions
    system: str
    dataset: str | None
    seed: int

    @property
    def folder(self) -> Path:
        """Returns the folder in which the run is trained."""
        name = f"{self.system}-seed{self.seed}"
        return self.conditions.run_folder / (self.dataset or "") / name

    @property
    def recipe(self) -> Recipe:
        """Returns the recipe of the run, with the folders of this machine."""
        of, seed = self.conditions, (("training", "seed"), self.seed)
        return of.file.system(self.system, self.dataset, [*of.choice(self.system), seed])

    @property
    def wanted(self) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the ablations under which its loss, and its scores too, are wanted."""
        if self.conditions.at:
            return (), ()
        return wanted_ablations(self.conditions.scale, self.conditions.name, self.system)

    def record(self) -> Run | None:
        """Returns the record of the run, if it has all that is wanted."""
        losses, scores = self.wanted
        for run in self.conditions.runs(self.system, self.dataset):
            has_all = set(losses) <= set(run.ablations) and set(scores) <= set(run.ablated_scores)
            if run.seed == self.seed and has_all:
                return run
        return None


def run_experiment(
    conditions: Conditions,
    systems: Systems,
    seeds: Sequence[int],
    console: Console,
    *,
    jobs: int = 1,
) -> None:
    """Trains what is missing of an experiment; without anything missing, no data are read."""
    asked = [
        AskedRun(conditions, system, dataset, seed)
        for seed in seeds
        for dataset, names in systems.items()
        for system in conditions.plain.system_names  # the baseline first
        if system in names
    ]

    def is_there(run: AskedRun) -> bool:
        return run.record() is not None

    if all(map(is_there, asked)):
        return
    console.print(conditions.title, style="bold", highlight=False, markup=False)
    tasks = {
        dataset: _read_task(conditions, names[0], dataset, console)
        for dataset, names in systems.items()
    }
    _check_data(conditions, systems, tasks)
    _let_choose(conditions, systems, tasks, console, jobs)
    # Again, since the recipes of today have what the systems have chosen.
    waiting = {run.folder: run for run in asked if not is_there(run)}
    for folder, run in waiting.items():
        # A finished run without its model goes, which cannot be asked what the table lacks; one
        # that was stopped goes on.
        if (folder / RESULT).exists() and not (folder / MODEL).exists():
            shutil.rmtree(folder)
        claim(folder, run.recipe)
    kept = set()

    def keep() -> None:
        for folder, run in waiting.items():
            result = None if folder in kept else read_result(folder)
            if result is not None:
                conditions.table.put(_record(run, result, tasks[run.dataset], console))
                remove_models(folder)
                kept.add(folder)

    data = {folder: tasks[run.dataset] for folder, run in waiting.items()}
    train_all(list(waiting), console, jobs=jobs, tasks=data, after_each=keep)
    keep()  # of those that were finished before


def run_question(
    question: Question,
    seeds: Sequence[int],
    places: Places,
    console: Console,
    *,
    jobs: int = 1,
) -> None:
    """Trains what is missing for a question, the runs of the experiment that it shares included."""
    own = Conditions(question.scale, question.experiment, places)
    systems: Systems = {question.dataset: list(question.systems)}
    # Which points share runs of the experiment depends on what the systems have chosen there.
    if not question.tuned_at_every_point and _to_choose(own, systems):
        _let_choose(own, systems, {}, console, jobs)
    for conditions, some in question.runs(places):
        run_experiment(conditions, {question.dataset: some}, seeds, console, jobs=jobs)


def _read_task(conditions: Conditions, system: str, dataset: str | None, console: Console) -> Task:
    """The data of an experiment, which all of its systems share; one is named for its encoding."""
    recipe = conditions.file.system(system, dataset)
    return prepare(conditions.run_folder / (dataset or ""), recipe, console)


def _record(run: AskedRun, result: RunResult, task: Task, console: Console) -> Run:
    """What the claims need of a finished run."""
    recipe = run.conditions.recipe(run.system, run.dataset)
    model = read_model(run.folder)
    rows = {}

    def note(outcome: Outcome, ablation: str | None = None) -> list[Score]:
        first = outcome.scores[0]
        if first.rows:
            rows[rows_key(first.name, ablation)] = small_rows(first.rows)
        return [score.model_copy(update={"rows": []}) for score in outcome.scores]

    def loss(ablation: str | None = None) -> float:
        with torch.no_grad(), torch.random.fork_rng(), _under(model, ablation):
            torch.manual_seed(0)  # what is drawn is the same for all systems
            losses = group_losses(model, task.parts["test"], task.collate)
        rows[rows_key(LOSS, ablation)] = small_rows(losses)
        total, labels = losses.sum(0)
        return float(total / labels)

    def scores(ablation: str) -> list[Score]:
        settings = recipe.evaluation.model_copy(update={"ablation": parse_ablations([ablation])})
        label = f"{run.system} {ablation}"
        return note(evaluate(model, task, "test", settings, console, label), ablation)

    losses, scored = run.wanted
    return Run(
        at=run.conditions.at,
        dataset=run.dataset,
        seed=run.seed,
        recipe=recipe_hash(recipe),
        data=task.digest(),
        minutes=result.seconds / 60,
        history=thinned(result.history),
        loss=loss(),
        ablations={text: loss(text) for text in losses},
        scores=note(read_outcome(run.folder)),
        ablated_scores={text: scores(text) for text in scored},
        versions=versions(),
        machine=machine(),
        rows=rows,
        **result.model_dump(include=_AS_IN_RESULT),
    )


@contextmanager
def _under(model: nn.Module, ablation: str | None) -> Iterator[None]:
    """The model under an ablation; with `mae=random-expert`, one that is drawn for each layer."""
    with ExitStack() as stack:
        if ablation == RANDOM_EXPERT:
            generator = torch.Generator().manual_seed(0)
            for path, system in systems(model).items():
                drawn = int(torch.randint(system.num_units, (), generator=generator))
                stack.enter_context(ablated(model, path, "only-expert", expert=drawn))
        elif ablation is not None:
            stack.enter_context(ablated(model, parse_ablations([ablation])))
        yield


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


_AS_IN_RESULT = {*("system", "parameters", "macs", "steps", "validation_loss", "attention")}


def _check_data(conditions: Conditions, systems: Systems, tasks: Mapping[str | None, Task]) -> None:
    """Raises `ValueError` if runs are kept that were made on other data: no test may mix them."""
    others = [
        run
        for dataset, names in systems.items()
        for system in names
        for run in conditions.runs(system, dataset)
        if run.data != tasks[dataset].digest()
    ]
    if others:
        raise ValueError(
            f"the data of {conditions.title} are not those of {len(others)} runs that are kept, "
            f"such as {others[0]}, and no claim may rest on both: use the same data, or keep all "
            f"runs on these data in another folder, with --results"
        )


def _to_choose(conditions: Conditions, systems: Systems) -> list[str]:
    """The systems that have to choose tuned values and have not done so."""
    named = {system for of in systems.values() for system in of}
    waiting = [name for name in conditions.plain.system_names if name in named]
    return [name for name in waiting if conditions.tune and conditions.chosen(name) is None]


def _let_choose(
    conditions: Conditions,
    systems: Systems,
    tasks: dict[str | None, Task],
    console: Console,
    jobs: int,
) -> None:
    """Lets systems choose tuned values; `tasks` has the data that are read already."""
    waiting = _to_choose(conditions, systems)
    if not waiting:
        return
    on = conditions.experiment.tune_on
    if on not in tasks:
        tasks[on] = _read_task(conditions, waiting[0], on, console)
    let_choose(conditions, waiting, tasks[on], console, jobs)


def measure_times(conditions: Conditions, systems: Sequence[str], console: Console) -> None:
    """Measures the times of a training step and of decoding a token, where it is not done yet.

    All systems are given the same batches, and generate the same number of tokens. Other work on
    the machine disturbs them: there are several measurements, each with models of its own. One
    thread does all the work: how several wait for each other is not the system's.
    """
    baseline, *others = conditions.plain.system_names
    known = {times.number: times for times in conditions.table.find(Times)}
    # Other claims may need what is known already, and all are measured in turns with the baseline.
    named = {*systems, *(system for times in known.values() for system in times.step)}
    asked = [baseline, *(other for other in others if other in named)]
    missing = [
        number
        for number in range(1, MEASUREMENTS + 1)
        if number not in known or not set(asked) <= known[number].step.keys()
    ]
    if not missing:
        return
    console.print(f"{conditions.title}: times", style="bold", highlight=False, markup=False)
    recipes = {system: conditions.file.system(system) for system in asked}
    task = _read_task(conditions, baseline, None, console)
    threads = torch.get_num_threads()
    for number in missing:
        models = {
            system: build_model(recipe, task).to(_device()) for system, recipe in recipes.items()
        }
        torch.set_num_threads(1)
        try:
            token = decoding_speeds(models, ROUNDS)
            found = Times(
                number=number,
                baseline=baseline,
                step=step_times(recipes, models, task),
                token={system: speed.relative_time for system, speed in token.items()},
                machine=machine(),
                versions=versions(),
            )
        finally:
            torch.set_num_threads(threads)
        conditions.table.put(found)
