"""The number that a claim is about, of one system: a value for each seed, from what is kept."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evidence.claims import AtScale, Quantity, Subject
from evidence.experiments import Conditions
from evidence.results import LOSS, Run, check_data, sound
from headwise.analysis.results import AttentionRecord
from headwise.analysis.statistics.seeds_and_items import Resampled
from headwise.recipes.recipe import Recipe
from headwise.tasks.scores import Score, resampled_scores


class Found(NamedTuple):
    """A quantity of one system over its seeds."""

    values: Resampled  # with resamples where it is made from test items
    higher_is_better: bool
    digits: int  # decimals in tables
    unit: str  # what the quantity is called

    @property
    def mean(self) -> float:
        return float(self.values.scores.mean())


# To resample takes long, and several claims ask for the same.
_FOUND: dict[tuple[Quantity, Subject, tuple[Run, ...]], Found | None] = {}


class Evidence:
    """The runs of the systems that the tests of a claim name, as they are read."""

    def __init__(
        self,
        quantity: Quantity,
        conditions: Conditions,
        where: AtScale,
        counted: Callable[[Sequence[Run]], list[Run]] = sound,
    ) -> None:
        self.where = where
        self.conditions = conditions
        self.quantity = quantity
        self.counted = counted  # the runs of a system that count
        self.used: dict[tuple[str, str | None], list[Run]] = {}

    def runs(self, subject: Subject) -> list[Run]:
        """Returns the runs of a system with the recipe of today, by their seeds."""
        here = self.where.named(subject)
        key = (here.system, here.dataset)
        if key not in self.used:
            found = self.conditions.runs(*key)
            same_data = [run for other, of in self.used.items() if other[1] == key[1] for run in of]
            check_data([*same_data, *found])
            self.used[key] = found
        return self.used[key]

    def recipe(self, subject: Subject) -> Recipe:
        """Returns the recipe of a system, with what it has chosen."""
        here = self.where.named(subject)
        return self.conditions.recipe(here.system, here.dataset)

    def find(self, subject: Subject, quantity: Quantity | None = None) -> Found | None:
        """Returns the number that the claim is about; None if the runs do not have it."""
        runs = self.counted(self.runs(subject))
        return find_quantity(quantity or self.quantity, subject, runs, self.recipe(subject))


def find_quantity(
    quantity: Quantity, subject: Subject, runs: Sequence[Run], recipe: Recipe
) -> Found | None:
    """Returns a quantity of a system from the records of its seeds; None if they do not have it."""
    key = (quantity, subject, tuple(runs))  # of which the recipe follows
    if key not in _FOUND:
        _FOUND[key] = _quantity(quantity, subject, runs, recipe)
    return _FOUND[key]


def _quantity(
    quantity: Quantity, subject: Subject, runs: Sequence[Run], recipe: Recipe
) -> Found | None:
    wanted = {*subject.without, *([subject.ablated] if subject.ablated else [])}
    if not runs or any(wanted - set(run.ablations) for run in runs):
        return None
    if subject.without:
        return _cost(subject, runs)
    if quantity.kind == "loss":
        draws = 1 if subject.ablated else getattr(recipe.evaluation, "draws", 1)
        of_runs = _losses(runs, subject.ablated) if draws == 1 else _losses_of_draws(runs)
        return Found(of_runs, False, 3, LOSS)
    if quantity.kind == "score":
        return _score(quantity, subject, runs)
    numbers = [_number(quantity, subject, run) for run in runs]
    if any(number is None for number in numbers):
        return None
    return Found(
        Resampled(np.array(numbers, dtype=float), None, 0),
        higher_is_better=quantity.kind in ("recorded", "entropy's fall in training"),
        digits=3,
        unit=quantity.name or quantity.kind,
    )


def _score(quantity: Quantity, subject: Subject, runs: Sequence[Run]) -> Found | None:
    of_runs = [_scores_of(run, subject) for run in runs]
    if not all(of_runs):
        return None
    name = quantity.name or of_runs[0][0].name
    scores = [
        run.scored(score, subject.ablated)
        for run, of in zip(runs, of_runs, strict=True)
        for score in of
        if score.name == name
    ]
    if len(scores) < len(runs):
        return None
    first = scores[0]
    return Found(_resampled(scores), not first.lower_is_better, first.digits, name)


def _scores_of(run: Run, subject: Subject) -> Sequence[Score]:
    return run.scores if subject.ablated is None else run.ablated_scores.get(subject.ablated, [])


def _cost(subject: Subject, runs: Sequence[Run]) -> Found:
    """How much the loss rises under ablations, on average over them."""
    before = _losses(runs, None)
    costs = [within_runs(_losses(runs, name), before) for name in subject.without]
    resamples = [cost.resamples for cost in costs if cost.resamples is not None]
    mean = Resampled(
        np.mean([cost.scores for cost in costs], axis=0),
        np.mean(resamples, axis=0) if resamples else None,
        before.items,
    )
    return Found(mean, False, 4, "rise of the loss")


def within_runs(changed: Resampled, unchanged: Resampled) -> Resampled:
    """Returns by how much two scores of the same runs differ, as a score of these runs."""
    resamples = None
    if changed.resamples is not None and unchanged.resamples is not None:
        resamples = changed.resamples - unchanged.resamples
    return Resampled(changed.scores - unchanged.scores, resamples, changed.items)


def _losses(runs: Sequence[Run], ablation: str | None) -> Resampled:
    return _resampled([run.loss_under(ablation) for run in runs])


def _losses_of_draws(runs: Sequence[Run]) -> Resampled:
    """The losses over all draws of the masks, which the rows of the score have."""
    losses = []
    for run in runs:
        rows = [row[:2] for row in run.rows_of(run.scores[0].name)]  # nats, tokens
        nats, tokens = np.sum(rows, axis=0)
        losses.append(Score(name=LOSS, value=nats / tokens, statistic="ratio", rows=rows))
    return _resampled(losses)


def _resampled(scores: Sequence[Score]) -> Resampled:
    values = np.array([score.value for score in scores])
    if not all(score.rows for score in scores):
        return Resampled(values, None, 0)
    return Resampled(values, resampled_scores(scores), len(scores[0].rows))


def _number(quantity: Quantity, subject: Subject, run: Run) -> float | None:
    if quantity.kind == "recorded":
        found = [r[quantity.name] for r in run.history if quantity.name in r]
        return found[-1] if found else None
    records = [r for r in run.attention if quantity.sites is None or r.site in quantity.sites]
    if subject.layer is not None and records:
        layers = sorted({record.layer for record in records})
        layer = layers[subject.layer] if subject.layer < 0 else subject.layer
        records = [record for record in records if record.layer == layer]
    measured = [_OF_DECISIONS[quantity.kind](record) for record in records]
    known = [number for number in measured if number is not None]
    if not known or len(known) < len(measured):
        return None
    of_modules = {"largest share": max, "smallest share": min}.get(quantity.kind, np.mean)
    return float(of_modules(known))


def _fall(record: AttentionRecord) -> float | None:
    return None if record.start_entropy is None else record.start_entropy - record.entropy


_OF_DECISIONS: Mapping[str, Callable[[AttentionRecord], float | None]] = {
    "entropy": lambda record: record.entropy,
    "entropy's fall in training": _fall,
    "largest share": lambda record: max(record.load),
    "smallest share": lambda record: min(record.load),
}
