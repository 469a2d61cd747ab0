"""The number that a claim is about, of one system: a value for each seed, from what is kept."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headwise.analysis.ablations.quality import MEAN_LOSS
from headwise.analysis.decisions.snapshots import AttentionRecord
from headwise.analysis.statistics.seeds_and_items import Resampled, within_runs
from headwise.claims.catalogue.declared import Quantity, Subject
from headwise.claims.evidence.records import LOSS, StoredRun, read_rows, rows_key
from headwise.recipe.catalogue import task_class
from headwise.recipe.settings import Recipe
from headwise.tasks.outcome import Score
from headwise.tasks.significance import Statistic, resampled_scores


class Found(NamedTuple):
    """A quantity of one system over its seeds.

    Attributes:
        values: of each seed, with resamples where it is made from test items.
        higher_is_better: of the quantity.
        digits: number of decimals in tables.
        unit: what the quantity is called.
    """

    values: Resampled
    higher_is_better: bool
    digits: int
    unit: str


class Kept(NamedTuple):
    """A run that is kept, and the path of its record."""

    path: Path
    run: StoredRun


def find_quantity(
    quantity: Quantity, subject: Subject, runs: Sequence[Kept], recipe: Recipe
) -> Found | None:
    """Returns a quantity of a system from the records of its seeds; None if they do not have it.

    Args:
        quantity: the quantity, one of single runs.
        subject: the system as the test means it.
        runs: its seeds, without those that diverged.
        recipe: of the system, for the settings of its evaluation.
    """
    wanted = {*subject.without, *([subject.ablated] if subject.ablated else [])}
    if not runs or any(wanted - set(each.run.ablations) for each in runs):
        return None
    if subject.without:
        return _cost(subject, runs)
    if quantity.kind == "loss":
        return Found(_losses(runs, subject.ablated), False, 3, "loss")
    if quantity.kind == "score":
        return _score(quantity, subject, runs, recipe)
    numbers = [_number(quantity, subject, each.run) for each in runs]
    if any(number is None for number in numbers):
        return None
    of_shares = quantity.kind != "entropy"
    return Found(
        Resampled(np.array(numbers, dtype=float), None, 0),
        higher_is_better=quantity.kind == "recorded",
        digits=3 if of_shares else 2,
        unit=quantity.name or quantity.kind,
    )


def _score(
    quantity: Quantity, subject: Subject, runs: Sequence[Kept], recipe: Recipe
) -> Found | None:
    scores = [_scores_of(each.run, subject) for each in runs]
    if any(not of for of in scores):
        return None
    name = quantity.name or scores[0][0].name
    found = [next((score for score in of if score.name == name), None) for of in scores]
    if any(score is None for score in found):
        return None
    first = found[0]
    assert first is not None
    values = np.array([score.value for score in found if score is not None])
    key = rows_key(name, test=subject.on, ablation=subject.ablated)
    rows = [read_rows(each.path, key) for each in runs]
    statistic = task_class(recipe.task).statistic(name, recipe.evaluation)
    return Found(_resampled(values, rows, statistic), first.higher_is_better, first.digits, name)


def _scores_of(run: StoredRun, subject: Subject) -> Sequence[Score]:
    if subject.ablated is not None:
        return run.ablated_scores.get(subject.ablated, [])
    return run.scores if subject.on is None else run.tests.get(subject.on, [])


def _cost(subject: Subject, runs: Sequence[Kept]) -> Found:
    """How much the loss rises under ablations, on average over them."""
    before = _losses(runs, None)
    costs = [within_runs(_losses(runs, name), before) for name in subject.without]
    resamples = [cost.resamples for cost in costs if cost.resamples is not None]
    mean = Resampled(
        np.mean([cost.scores for cost in costs], axis=0),
        np.mean(resamples, axis=0) if resamples else None,
        before.items,
    )
    return Found(mean, False, 3, "rise of the loss")


def _losses(runs: Sequence[Kept], ablation: str | None) -> Resampled:
    values = [each.run.loss if ablation is None else each.run.ablations[ablation] for each in runs]
    rows = [read_rows(each.path, rows_key(LOSS, ablation=ablation)) for each in runs]
    return _resampled(np.array(values), rows, MEAN_LOSS)


def _resampled(
    values: np.ndarray, rows: Sequence[np.ndarray | None], statistic: Statistic
) -> Resampled:
    known = [of for of in rows if of is not None]
    if len(known) < len(rows):
        return Resampled(values, None, 0)
    return Resampled(values, resampled_scores(known, statistic), len(known[0]))


def _number(quantity: Quantity, subject: Subject, run: StoredRun) -> float | None:
    if quantity.kind == "recorded":
        found = [r[quantity.name] for r in run.history if quantity.name in r]
        return found[-1] if found else None
    records = [
        record
        for record in run.attention
        if quantity.sites is None or record.site in quantity.sites
    ]
    if subject.layer is not None:
        layers = sorted({record.layer for record in records})
        if not layers:
            return None
        layer = layers[subject.layer] if subject.layer < 0 else subject.layer
        records = [record for record in records if record.layer == layer]
    measure = _OF_DECISIONS[quantity.kind]
    return float(np.mean([measure(record) for record in records])) if records else None


_OF_DECISIONS: Mapping[str, Callable[[AttentionRecord], float]] = {
    "entropy": lambda record: record.entropy,
    "largest share": lambda record: max(record.load),
    "smallest share": lambda record: min(record.load),
}
