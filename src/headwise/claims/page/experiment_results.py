"""What the kept runs of an experiment say of its systems, whichever claims they are for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headwise.analysis.how_soon import Curve, curve
from headwise.analysis.statistics.estimates import Difference, corrected
from headwise.analysis.statistics.seeds_and_items import difference
from headwise.claims.catalogue.declared import SCALES, Quantity, Scale, Subject
from headwise.claims.catalogue.experiments import Places, experiments
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.evidence.kept_runs import is_stale, kept_runs, sound
from headwise.claims.evidence.quantities import Found, Kept, find_quantity
from headwise.recipe.catalogue import task_class
from headwise.recipe.settings import Recipe


class SystemResult(NamedTuple):
    """The runs of one system on one data set.

    Attributes:
        name: of the system.
        recipe: with what the system has chosen.
        is_tuned: whether it has chosen anything.
        runs: its seeds, without those that diverged; at least one.
        diverged: how many diverged.
        is_stale: whether the code computes something else today than when they were made.
        score: the first score of the test part; None if the task has none that is finite.
        loss: the test loss.
    """

    name: str
    recipe: Recipe
    is_tuned: bool
    runs: Sequence[Kept]
    diverged: int
    is_stale: bool
    score: Found | None
    loss: Found | None

    @property
    def curves(self) -> list[Curve]:
        """The finite validation losses of each seed."""
        return [curve(each.run.history, "eval_loss") for each in self.runs]


class ExperimentResult(NamedTuple):
    """The systems of an experiment on one data set.

    Attributes:
        scale, name: of the experiment.
        dataset: name of the data set; None for the only one.
        task: name of the task.
        loss_name: unit of the losses.
        systems: in the order of the recipe, whose first system is the baseline; those without runs
            are left out.
        scores, losses: system to the difference of its score, or test loss, from the baseline's,
            with p corrected over the systems. Empty if the baseline has no runs.
    """

    scale: Scale
    name: str
    dataset: str | None
    task: str
    loss_name: str
    baseline: str
    systems: Sequence[SystemResult]
    scores: Mapping[str, Difference | None]
    losses: Mapping[str, Difference | None]


def experiment_results(places: Places) -> list[list[ExperimentResult]]:
    """Returns the experiments of all scales that have runs, each as a list of its data sets."""
    found = []
    for scale in SCALES:
        for name in experiments(scale):
            conditions = Conditions(scale, name, places)
            if next(conditions.own.evidence.rglob("*-seed*.json"), None) is None:
                continue  # to read a recipe takes a while
            of_datasets = list(_on_datasets(conditions))
            if of_datasets:
                found.append(of_datasets)
    return found


def _on_datasets(conditions: Conditions) -> Iterator[ExperimentResult]:
    file = conditions.plain
    for dataset in [*([None] if file.has_data else []), *file.dataset_names]:
        systems = [
            result
            for system in file.system_names
            if (result := _of_system(conditions, system, dataset)) is not None
        ]
        if not systems:
            continue
        task = task_class(systems[0].recipe.task)
        baseline = file.system_names[0]
        scale, name, of = conditions.scale, conditions.name, systems[0].recipe.task
        yield ExperimentResult(
            *(scale, name, dataset, of, task.loss_name, baseline, systems),
            scores=_differences({s.name: s.score for s in systems}, baseline),
            losses=_differences({s.name: s.loss for s in systems}, baseline),
        )


def _of_system(conditions: Conditions, name: str, dataset: str | None) -> SystemResult | None:
    recipe = conditions.recipe(name, dataset)
    here = Subject(system=name, dataset=dataset)
    runs = kept_runs(conditions.own.evidence, here, recipe)
    kept = sound(runs)
    if not kept:
        return None
    score, loss = (
        find_quantity(Quantity(kind=kind), here, kept, recipe) for kind in ("score", "loss")
    )
    return SystemResult(
        name,
        recipe,
        is_tuned=bool(conditions.choice(name)),
        runs=kept,
        diverged=len(runs) - len(kept),
        is_stale=is_stale(kept, recipe),
        score=score,
        loss=loss,
    )


def _differences(found: Mapping[str, Found | None], baseline: str) -> dict[str, Difference | None]:
    base = found.get(baseline)
    if base is None:
        return {}
    others = {name: of for name, of in found.items() if name != baseline and of is not None}
    made = {name: difference(of.values, base.values, len(others)) for name, of in others.items()}
    # Single runs say nothing of other seeds.
    return corrected({n: None if of and of.source == "items" else of for n, of in made.items()})
