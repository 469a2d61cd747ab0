"""What a comparison found: the scores of its systems, with intervals and tests, and the verdict.

All is computed from the folders of finished runs and from `comparison.json` beside them. A run that
diverged is in no mean.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from headwise.analysis.results import Benchmark, Compared, RunResult
from headwise.analysis.statistics import (
    Estimate,
    Scores,
    contrast,
    corrected,
    mean_of,
    p_value,
)
from headwise.report.page import number
from headwise.runs.evaluate import TEST, read_outcome
from headwise.runs.folder import read_result
from headwise.runs.names import COMPARISON
from headwise.tasks.scores import Outcome, Score

MEAN = "mean"  # over data sets, in the place of the name of one
# Three of four is what simulations find with three seeds; see docs/statistics.md.
FOUND = "about three of four such comparisons"
_BASELINE = Estimate(math.nan, why="baseline")  # it has no difference to itself


@dataclass(frozen=True)
class System:
    """A system over its seeds."""

    name: str
    runs: list[RunResult]  # all that are finished
    outcomes: list[dict[str, Outcome]]  # of those that did not diverge, by test set

    @property
    def sound(self) -> list[RunResult]:
        """The runs that did not diverge."""
        return [run for run in self.runs if not run.diverged]

    def scores(self, test: str, name: str) -> Scores:
        """Collects one score on one test set over the seeds."""
        of_runs = [outcome[test].scores for outcome in self.outcomes if test in outcome]
        return Scores.of([score for scores in of_runs for score in scores if score.name == name])


@dataclass(frozen=True)
class Cell:
    """One score of one system, and its difference to the baseline's."""

    dataset: str
    test: str
    score: Score  # of any run: its name, digits and direction
    system: str
    values: np.ndarray  # of the seeds
    mean: Estimate
    difference: Estimate  # to the baseline's

    @property
    def judged(self) -> str:
        """What the test says: better or worse than the baseline, not different, or nothing."""
        found = self.difference
        if not found.significant:
            return "not significantly different from" if "seeds" in found.over else ""
        is_better = (found.value < 0) == self.score.lower_is_better
        return f"significantly {'better' if is_better else 'worse'} than"


@dataclass(frozen=True)
class Comparison:
    """Systems on one data set, the baseline first."""

    title: str  # of all data sets together
    dataset: str  # its name among several
    compared: Compared
    systems: list[System]
    missing: list[str]  # the runs that are not finished

    @property
    def baseline(self) -> str:
        """The name of the system with which others are compared."""
        return self.systems[0].name

    @property
    def runs(self) -> list[RunResult]:
        """The finished runs of all systems."""
        return [run for system in self.systems for run in system.runs]

    @cached_property
    def columns(self) -> list[tuple[str, Score]]:
        """All scores with their test sets, in order; the first one ranks the systems."""
        found: dict[tuple[str, str], Score] = {}
        for run in self.runs:
            for test, scores in {TEST: run.scores, **run.tests}.items():
                for score in scores:
                    found.setdefault((test, score.name), score)
        columns = [(test, score) for (test, _), score in found.items()]
        return sorted(columns, key=lambda column: column[0] != TEST)

    @cached_property
    def scores(self) -> dict[tuple[str, str, str], Scores]:
        """Each score by test set, name and system."""
        return {
            (test, score.name, system.name): system.scores(test, score.name)
            for test, score in self.columns
            for system in self.systems
        }

    @cached_property
    def cells(self) -> list[Cell]:
        """All scores, with p corrected over those that are tested together.

        Tested together are the first score on the test part, which ranks the systems; the first
        score on all further test sets; and all further scores.
        """
        firsts = {test: score.name for test, score in reversed(self.columns)}
        families: dict[str, list[tuple[str, Score]]] = {}
        for test, score in self.columns:
            family = ("test" if test == TEST else "tests") if firsts[test] == score.name else "rest"
            families.setdefault(family, []).append((test, score))
        others = len(self.systems) - 1
        found = [
            cell
            for columns in families.values()
            for cell in _corrected(self.tested(columns, len(columns) * others))
        ]
        order = [(test, score.name) for test, score in self.columns]
        return sorted(found, key=lambda cell: order.index((cell.test, cell.score.name)))

    def tested(self, columns: Sequence[tuple[str, Score]], tests: int) -> list[Cell]:
        """Estimates the scores of some columns of a table that has `tests` differences."""
        found = []
        for test, score in columns:
            base = self.scores[test, score.name, self.baseline]
            for system in self.systems:
                own = self.scores[test, score.name, system.name]
                apart = _BASELINE if own is base else contrast(own, base, tests=tests)
                at = (self.dataset, test, score, system.name)
                found.append(Cell(*at, own.values, contrast(own), apart))
        return found

    @property
    def ranking(self) -> list[Cell]:
        """The score that ranks the systems, in their order; nothing if nothing was evaluated."""
        return self.cells[: len(self.systems)]


def _corrected(cells: Sequence[Cell]) -> list[Cell]:
    """Corrects the p-values of the scores of one table."""
    found = corrected([cell.difference for cell in cells])
    return [replace(cell, difference=each) for cell, each in zip(cells, found, strict=True)]


def read_comparison(folder: Path) -> list[Comparison]:
    """Reads the comparison of a folder: one for each of its data sets.

    Raises:
        FolderError: a file of a finished run cannot be read.
    """
    text = (folder / COMPARISON).read_text(encoding="utf-8")
    if "datasets" in json.loads(text):
        several = Benchmark.model_validate_json(text)
        return [
            replace(of, title=several.title, dataset=name)
            for name in several.datasets
            for of in read_comparison(folder / name)
        ]
    compared = Compared.model_validate_json(text)
    systems = {name: System(name, [], []) for name in compared.systems}
    missing = []
    for name, system in compared.runs.items():
        result = read_result(folder / name)
        if result is None:
            missing.append(name)
            continue
        systems[system].runs.append(result)
        if result.scores and not result.diverged:
            tests = (TEST, *result.tests)
            outcomes = {test: read_outcome(folder / name, test) for test in tests}
            systems[system].outcomes.append(outcomes)
    return [Comparison(compared.title, "", compared, list(systems.values()), missing)]


def over_data_sets(comparisons: Sequence[Comparison]) -> list[Cell]:
    """Estimates the first score on each data set and, if all have the same one, its mean."""
    names = {of.columns[0][1].name if of.columns else "" for of in comparisons}
    has_mean = len(names) == 1 and "" not in names
    systems = [system.name for system in comparisons[0].systems]
    tests = (len(comparisons) + has_mean) * (len(systems) - 1)
    found = [cell for of in comparisons for cell in of.tested(of.columns[:1], tests)]
    for name in systems if has_mean else []:
        own = [cell for cell in found if cell.system == name]
        apart = mean_of([cell.difference for cell in own], tests)
        mean = mean_of([cell.mean for cell in own])
        found.append(Cell(MEAN, TEST, own[0].score, name, np.array([]), mean, apart))
    return _corrected(found)


def results(folder: Path) -> pd.DataFrame:
    """Returns all scores of a comparison, not rounded: a row for each score of each system.

    Of several data sets, the table of first scores with their mean comes first: p is corrected over
    it. What is not there is NaN, and `why` and `diff_why` say why.

    Returns:
        `value`, the mean over `seeds`, with their standard `deviation`, and its 95% interval from
        `low` to `high`; and `difference`, that to the baseline, from `diff_low` to `diff_high`,
        with its `p`, and `corrected_p` by Holm's method. `over` is whose chance it is.
    """
    comparisons = read_comparison(folder)
    if len(comparisons) == 1:
        return frame(comparisons[0].cells)
    rest = [cell for of in comparisons for cell in of.cells[len(of.systems) :]]
    return frame([*over_data_sets(comparisons), *rest])


def frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """Makes a table of scores; `results` explains its columns."""
    rows = []
    for cell in cells:
        mean, apart = cell.mean, cell.difference
        row = {
            "dataset": cell.dataset,
            "test": cell.test,
            "score": cell.score.name,
            "system": cell.system,
            "seeds": len(cell.values),
            "deviation": pd.Series(cell.values).std(),
            **{name: getattr(mean, name) for name in ("value", "low", "high", "over", "why")},
            "difference": apart.value,
            **{f"diff_{name}": getattr(apart, name) for name in ("low", "high", "over", "why")},
            **{name: getattr(apart, name) for name in ("p", "corrected_p", "detectable")},
            "significant": apart.significant,
        }
        rows.append(row)
    return pd.DataFrame(rows)


# --- the verdict ------------------------------------------------------------------------------


def verdict(folder: Path) -> str:
    """Says which system is best, by how much, and whether that may be chance."""
    return verdict_of(read_comparison(folder))


def verdict_of(comparisons: Sequence[Comparison]) -> str:
    """Gives the verdict on one data set or several; a line on missing runs comes before it."""
    missing = [f"{of.dataset} {run}".strip() for of in comparisons for run in of.missing]
    asked = sum(len(of.compared.runs) for of in comparisons)
    found = on_one(comparisons[0]) if len(comparisons) == 1 else _on_several(comparisons)
    if not missing:
        return found
    finished = f"{asked - len(missing)} of {asked} runs are finished"
    return f"{finished}; these are missing: {', '.join(missing)}.\n{found}"


def on_one(of: Comparison) -> str:
    """Gives the verdict on one data set."""
    known = [cell for cell in of.ranking if math.isfinite(cell.mean.value)]
    sentences = _best(known, of) if known else ["There is no result."]
    groups: dict[str, list[str]] = {}
    for cell in known if len(known) > 2 else []:
        groups.setdefault(cell.judged, []).append(cell.system)
    said = [f"{judged} the baseline: {', '.join(groups[judged])}" for judged in groups if judged]
    if said:
        sentences.append(f"Of all systems, {'; '.join(said)}.")
    without = [
        f"{system.name} ({_why_no_score(system)})"
        for system in of.systems
        if system.name not in [cell.system for cell in known]
    ]
    if without:
        sentences.append(
            f"Systems without a score, with which none is compared: {', '.join(without)}."
        )
    return " ".join(sentences)


def _why_no_score(system: System) -> str:
    if not system.runs:
        return "not finished"
    return "losses alone" if system.sound else "all runs diverged"


def _best(known: Sequence[Cell], of: Comparison) -> list[str]:
    """Names the best system and its difference to the baseline, or that of the next best to it."""
    sign = -1 if known[0].score.lower_is_better else 1
    # In a tie the baseline comes first: a system that is no better is not worth a change.
    best, *others = sorted(known, key=lambda c: (-sign * c.mean.value, c.system != of.baseline))
    name = best.score.name if best.dataset != MEAN else f"mean {best.score.name} over data sets"
    sentences = [
        f"{best.system} has {'the best ' if others else ''}{name}: {_with_interval(best)}."
    ]
    if of.baseline not in [cell.system for cell in known] or not others:
        return sentences
    rivals = others if best.system == of.baseline else [best]
    if not all(cell.difference.significant for cell in rivals):
        sentences.insert(0, "No clear winner.")
    told, digits = rivals[0], best.score.digits
    apart = number(told.difference.value, digits, sign=True)
    sentences.append(
        f"{told.system} differs from the baseline {of.baseline} by {apart}: {_judged(told, of)}."
    )
    if best.dataset != MEAN:
        sentences.append(_cost(of, told.system))
    if len(known) > 2:
        sentences.append(
            f"The best of {len(known)} systems is chosen after the fact, which no interval knows: "
            f"expect a smaller lead with new seeds."
        )
    return sentences


def _with_interval(cell: Cell) -> str:
    """Writes a mean over seeds with its interval, in words."""
    digits, mean = cell.score.digits, cell.mean
    remarks = [f"mean of {len(cell.values)} seeds"] if len(cell.values) > 1 else []
    if math.isfinite(mean.low):
        remarks.append(f"95% interval {number(mean.low, digits)} to {number(mean.high, digits)}")
    return number(mean.value, digits) + (f" ({', '.join(remarks)})" if remarks else "")


def _judged(cell: Cell, of: Comparison) -> str:
    """Says whether a difference to the baseline may be chance."""
    found, digits = cell.difference, cell.score.digits
    low, high = (number(end, digits, sign=True) for end in (found.low, found.high))
    interval = f"95% interval {low} to {high}" if math.isfinite(found.low) else "no interval"
    if found.over == "items":
        return (
            f"one seed cannot tell whether that is chance, and another may reverse it ({interval} "
            f"over test {of.compared.item_name} alone)"
        )
    if not found.over:
        return f"no test can be made ({found.why})"
    if found.significant:
        return f"a significant difference ({interval}, {p_value(found.corrected_p)})"
    detectable = f"{FOUND} would find a true difference of {number(found.detectable, digits)}"
    return f"it may be chance ({interval}, {p_value(found.corrected_p)}; {detectable})"


def _cost(of: Comparison, name: str) -> str:
    own, base = (next(s.runs[0] for s in of.systems if s.name == n) for n in (name, of.baseline))
    times = of.compared.step_times.get(name)
    time = f" and takes {number(times.value, 2)}× its time per step" if times else ""
    size = number(own.parameters / base.parameters, 2)
    return f"It has {size}× the parameters of {of.baseline}{time}."


def _on_several(comparisons: Sequence[Comparison]) -> str:
    """Gives the verdict on several data sets: on their mean, and on how many a system is better."""
    cells = over_data_sets(comparisons)
    means = [c for c in cells if c.dataset == MEAN and math.isfinite(c.mean.value)]
    sentences = _best(means, comparisons[0]) if means else ["There is no mean over data sets."]
    for system in comparisons[0].systems[1:]:
        own = [c.judged for c in cells if c.system == system.name and c.dataset != MEAN]
        counts = pd.Series([judged for judged in own if judged], dtype=str).value_counts()
        if len(counts):
            said = [f"{judged} the baseline on {count}" for judged, count in counts.items()]
            sentences.append(f"Of {counts.sum()} data sets, {system.name} is {', '.join(said)}.")
    return " ".join(sentences)
