"""What the kept runs of an experiment say of its systems, whichever claims they are for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evidence.claims import SCALES, Quantity, Subject
from evidence.experiments import Conditions, Places, experiments
from evidence.judging import interval
from evidence.quantities import Found, find_quantity
from evidence.results import Run, sound
from headwise.analysis.how_soon import Curve, curve, mean_curve
from headwise.analysis.statistics.estimates import Difference, corrected
from headwise.analysis.statistics.seeds_and_items import contrast
from headwise.recipes.recipe import Recipe, task_class
from headwise.report.formatting import NONE, count, p_value

LITTLE = 0.01  # of the whole fall of a loss: a fall in the last tenth below it counts as none


class SystemResult(NamedTuple):
    """The runs of one system on one data set."""

    name: str
    recipe: Recipe  # with what the system has chosen, if `is_tuned`
    is_tuned: bool
    runs: Sequence[Run]  # without those that collapsed; at least one
    collapsed: Sequence[Run]
    score: Found | None  # the first of the test part
    loss: Found | None  # on the test part

    @property
    def all_runs(self) -> list[Run]:
        """Returns the runs with those that collapsed."""
        return [*self.runs, *self.collapsed]

    @property
    def curves(self) -> list[Curve]:
        """The finite validation losses of each seed."""
        return [curve(run.history, "eval_loss") for run in self.runs]

    @property
    def row(self) -> list[str]:
        """The system as the table shows it: see `experiments.md.jinja`."""
        curves = [curve for curve in self.curves if curve]
        rate = self.recipe.training.learning_rate
        machines = dict.fromkeys(run.machine for run in self.runs)
        return [
            self.name,
            f"{len(self.runs)}" + (f", {len(self.collapsed)} collapsed" if self.collapsed else ""),
            count(self.runs[0].parameters),
            count(self.runs[0].macs),
            f"{rate:g}" + ("" if self.is_tuned else " (given)"),
            f"{task_class(self.recipe.task).config(self.recipe).dropout:g}",
            mean_and_deviation(self.score),
            NONE  # a mean hides a single seed that fell far behind
            if self.score is None
            else ", ".join(f"{each:.{self.score.digits}f}" for each in self.score.values.scores),
            mean_and_deviation(self.loss),
            _mean([_last_training_loss(run) for run in self.runs]),
            _mean([min(curve.values()) for curve in curves]),
            _mean([curve[max(curve)] for curve in curves]),
            "; ".join(_minutes_on(machine, self.runs) for machine in machines),
        ]


class ExperimentResult(NamedTuple):
    """The systems of an experiment on one data set."""

    conditions: Conditions
    dataset: str | None
    loss_name: str
    baseline: str
    systems: Sequence[SystemResult]  # those that have runs, in the order of the recipe
    # Differences from the baseline by system, with p corrected over the systems.
    scores: Mapping[str, Difference | None]
    losses: Mapping[str, Difference | None]

    @property
    def score(self) -> Found | None:
        """One of the scores, which all have one unit; None if there are none."""
        return next((system.score for system in self.systems if system.score is not None), None)

    @property
    def items(self) -> int:
        """How many items the test part has; 0 if that is not known."""
        found = [of for system in self.systems for of in (system.score, system.loss)]
        return max((of.values.items for of in found if of is not None), default=0)

    @property
    def difference_rows(self) -> list[list[str]]:
        """Name, difference of the score, and of the loss, of the systems that have one of them."""
        digits = 1 if self.score is None else self.score.digits
        rows = [(s.name, self.scores.get(s.name), self.losses.get(s.name)) for s in self.systems]
        return [
            [n, _apart(score, digits), _apart(loss, 3)] for n, score, loss in rows if score or loss
        ]

    @property
    def ending(self) -> str:
        """How the training of the baseline ended; empty without runs of it."""
        baseline = next((s for s in self.systems if s.name == self.baseline), None)
        return "" if baseline is None else how_it_ended(baseline)


def experiment_results(places: Places) -> list[list[ExperimentResult]]:
    """Returns the experiments of all scales that have runs, each as a list of its data sets."""
    every = [Conditions(scale, name, places) for scale in SCALES for name in experiments(scale)]
    kept = [list(_on_datasets(each)) for each in every if each.table.path.is_file()]
    return [found for found in kept if found]


def _on_datasets(conditions: Conditions) -> Iterator[ExperimentResult]:
    file = conditions.plain
    baseline = file.system_names[0]
    for dataset in [*([None] if file.has_data else []), *file.dataset_names]:
        found = [_of_system(conditions, system, dataset) for system in file.system_names]
        if systems := [each for each in found if each is not None]:
            yield ExperimentResult(
                *(conditions, dataset, task_class(systems[0].recipe.task).loss_unit),
                *(baseline, systems),
                scores=_differences({s.name: s.score for s in systems}, baseline),
                losses=_differences({s.name: s.loss for s in systems}, baseline),
            )


def _of_system(conditions: Conditions, name: str, dataset: str | None) -> SystemResult | None:
    runs = conditions.runs(name, dataset)
    if not (kept := sound(runs)):
        return None
    recipe = conditions.recipe(name, dataset)
    here = Subject(system=name)
    return SystemResult(
        name,
        recipe,
        is_tuned=bool(conditions.choice(name)),
        runs=kept,
        collapsed=[run for run in runs if run not in kept],
        score=find_quantity(Quantity(kind="score"), here, kept, recipe),
        loss=find_quantity(Quantity(kind="loss"), here, kept, recipe),
    )


def _differences(found: Mapping[str, Found | None], baseline: str) -> dict[str, Difference | None]:
    base = found.get(baseline)
    if base is None:
        return {}
    others = {name: of for name, of in found.items() if name != baseline and of is not None}
    return corrected(
        {name: contrast([of.values, base.values], len(others)) for name, of in others.items()}
    )


def how_it_ended(system: SystemResult) -> str:
    """Says whether a system had stopped learning when its training ended."""
    mean = mean_curve(system.curves)
    if len(mean) < 3:
        return f"Too few validations of {system.name} are kept to say whether it still fell."
    steps, losses = list(mean), list(mean.values())
    lowest, last = min(losses), losses[-1]
    fall = [loss for step, loss in mean.items() if step <= 0.9 * steps[-1] or step == steps[0]][-1]
    fall, whole = fall - last, losses[0] - lowest
    share = f"{abs(fall) / whole:.1%}" if whole > 0 else NONE
    if fall >= LITTLE * whole:
        ended = "it was still learning"
    elif last - lowest >= LITTLE * whole:
        ended = "it had learned what it could, and overfitted after"
    elif system.recipe.training.schedule in ("linear", "cosine"):  # which make any loss flat
        ended = "it was flat as the learning rate reached zero"
    else:
        ended = "it was flat"
    return (
        f"The mean validation loss of {system.name} was lowest at step "
        f"{steps[losses.index(lowest)]:,} of {steps[-1]:,} ({lowest:.3f}), and {last:.3f} at the "
        f"end. Over the last tenth of the steps it {'fell' if fall >= 0 else 'rose'} by "
        f"{abs(fall):.3f}, which is {share} of its whole fall: {ended}."
    )


def _minutes_on(machine: str, runs: Sequence[Run]) -> str:
    minutes = [run.minutes for run in runs if run.machine == machine]
    return f"{len(minutes)} on {machine}: {np.median(minutes):.1f}"


def _last_training_loss(run: Run) -> float:
    """The mean training loss of the last tenth of the steps."""
    losses = [r["loss"] for r in run.history if "loss" in r and r["step"] > 0.9 * run.steps]
    return float(np.mean(losses)) if losses else float("nan")


def _apart(found: Difference | None, digits: int) -> str:
    if found is None:
        return NONE
    said = f"{interval(found, digits)}, {p_value(found.corrected_p_value)}"
    return f"**{said}**" if found.significant else said


def mean_and_deviation(found: Found | None) -> str:
    """Returns the mean of seeds and, if there are several, their standard deviation."""
    if found is None:
        return NONE
    text = f"{found.mean:.{found.digits}f}"
    if found.values.seeds < 2:
        return text
    return f"{text} ± {np.std(found.values.scores, ddof=1):.{found.digits}f}"


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" if values else NONE
