"""What a comparison found: the scores of its systems, with intervals and tests, and the verdict.

All is computed from the folders of finished runs and from `comparison.json` beside them. A run that
diverged is in no mean.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.analysis.results import Benchmark, Compared, RunResult
from headwise.analysis.statistics import (
    SIGNIFICANT,
    Estimate,
    Scores,
    contrast,
    holm,
    mean_of,
    p_value,
)
from headwise.report.page import interval, number
from headwise.runs.evaluate import TEST, read_outcome
from headwise.runs.folder import read_result
from headwise.runs.names import COMPARISON
from headwise.tasks.scores import Outcome, Score

MEAN = "mean"  # over data sets, in the place of the name of one
RANKING = "first score"  # the family of the scores that rank the systems
_KEYS = ("family", "dataset", "test", "score", "lower_is_better", "digits", "system", "of_seeds")
_OF_MEAN = ("value", "low", "high", "over", "why")
_OF_DIFFERENCE = ("p", "detectable", "difference", *(f"diff_{name}" for name in _OF_MEAN[1:]))


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
class Comparison:
    """Systems on one data set, the baseline first."""

    title: str  # of all data sets together
    dataset: str  # its name among several
    compared: Compared
    systems: list[System]
    lost: dict[str, str]  # runs that are in no mean, and why

    @property
    def baseline(self) -> str:
        """The name of the system with which others are compared."""
        return self.systems[0].name

    @property
    def runs(self) -> list[RunResult]:
        """The finished runs of all systems."""
        return [run for system in self.systems for run in system.runs]


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
    lost = {}
    for name, system in compared.runs.items():
        result = read_result(folder / name)
        if result is None:
            lost[name] = "not finished"
            continue
        systems[system].runs.append(result)
        if result.diverged:
            lost[name] = "diverged"
        elif result.scores:
            tests = (TEST, *result.tests)
            outcomes = {test: read_outcome(folder / name, test) for test in tests}
            systems[system].outcomes.append(outcomes)
    return [Comparison(compared.title, "", compared, list(systems.values()), lost)]


def results(folder: Path) -> pd.DataFrame:
    """Returns all scores of a comparison, not rounded: a row for each score of each system.

    Of several data sets the mean of the first score over them is there too, if it is the same
    score. What is not there is NaN, and `why` and `diff_why` say why.

    Returns:
        `value`, the mean of the values `of_seeds`, and its 95% interval from `low` to `high`; and
        `difference`, that to the baseline, from `diff_low` to `diff_high`, with its `p`, and
        `corrected_p` by Holm's method over its `family`. `over` is whose chance it is. A family is
        the first score on all data sets, that on the further test sets of a data set, or all other
        scores of a data set.
    """
    return scores_of(read_comparison(folder))


def scores_of(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Estimates and tests the scores of comparisons; `results` explains the table."""
    columns = [column for of in comparisons for column in _columns(of)]
    first = [score.name for *_, score, family in columns if family == RANKING]
    has_mean = 1 < len(first) == len(comparisons) and len(set(first)) == 1
    tests = Counter(family for *_, family in columns) + Counter({RANKING: int(has_mean)})
    names = [system.name for system in comparisons[0].systems]
    number_of_tests = {family: n * (len(names) - 1) for family, n in tests.items()}
    rows: list[tuple[Any, ...]] = []
    ranking: dict[str, list[tuple[Estimate, Estimate]]] = {name: [] for name in names}
    for of, test, score, family in columns:
        scores = [system.scores(test, score.name) for system in of.systems]
        key = (family, of.dataset, test, score.name, score.lower_is_better, score.digits)
        for name, own in zip(names, scores, strict=True):
            apart = Estimate(math.nan, why="baseline")
            if name != of.baseline:
                apart = contrast(own, scores[0], tests=number_of_tests[family])
            found = contrast(own), apart
            rows.append((*key, name, own.values.tolist(), *_numbers(*found)))
            if family == RANKING:
                ranking[name].append(found)
    for name in names if has_mean else ():
        means, differences = zip(*ranking[name], strict=True)
        found = mean_of(means), mean_of(differences, number_of_tests[RANKING])
        rows.append((RANKING, MEAN, *rows[0][2:6], name, [], *_numbers(*found)))
    table = pd.DataFrame(rows, columns=[*_KEYS, *_OF_MEAN, *_OF_DIFFERENCE])
    p = table.groupby("family")["p"]
    table["corrected_p"] = p.transform(lambda own: pd.Series(holm(own), own.index))
    table["significant"] = table["corrected_p"] < SIGNIFICANT
    return table


def _numbers(mean: Estimate, apart: Estimate) -> list[Any]:
    """Lists what the table has of a mean and of its difference to the baseline."""
    # A p over items alone says nothing of systems: another seed may reverse it.
    p = apart.p if "seeds" in apart.over else math.nan
    ends = [[each.value, each.low, each.high, each.over, each.why] for each in (mean, apart)]
    return [*ends[0], p, apart.detectable, *ends[1]]


def _columns(of: Comparison) -> Iterator[tuple[Comparison, str, Score, str]]:
    """Yields all scores of a comparison with test set and family, the one that ranks first."""
    found: dict[tuple[str, str], Score] = {}
    for run in of.runs:
        for test, scores in {TEST: run.scores, **run.tests}.items():
            for score in scores:
                found.setdefault((test, score.name), score)
    seen = set()
    for (test, _), score in sorted(found.items(), key=lambda item: item[0][0] != TEST):
        family = RANKING if test == TEST else f"{of.dataset} further test sets".strip()
        if test in seen:
            family = f"{of.dataset} other scores".strip()
        seen.add(test)
        yield of, test, score, family


# --- the verdict ------------------------------------------------------------------------------


def verdict(folder: Path) -> str:
    """Says which system is best, by how much, and whether that may be chance."""
    comparisons = read_comparison(folder)
    return verdict_of(comparisons, scores_of(comparisons))


def verdict_of(comparisons: Sequence[Comparison], table: pd.DataFrame) -> str:
    """Gives the verdict on a data set, or on the mean over several; lost runs come first."""
    of = comparisons[0]
    dataset = of.dataset if len(comparisons) == 1 else MEAN
    ranking = table[(table["family"] == RANKING) & (table["dataset"] == dataset)]
    lost = [
        f"{each.dataset} {run} ({why})".strip()
        for each in comparisons
        for run, why in each.lost.items()
    ]
    asked = sum(len(each.compared.runs) for each in comparisons)
    said = f"{len(lost)} of {asked} runs are in no mean: {', '.join(lost)}.\n" if lost else ""
    # The sort is stable, so that of equals the baseline is first.
    lower = bool(ranking["lower_is_better"].any())
    known = ranking.dropna(subset="value").sort_values("value", ascending=lower, kind="stable")
    if known.empty:
        return f"{said}There is no {'result' if dataset != MEAN else 'mean'}."
    best, *others = known.itertuples()
    is_compared = bool(others) and of.baseline in set(known["system"])
    # The best is compared with the baseline; if that is the best, so is each other one.
    rivals = [best] if best.system != of.baseline else others
    if is_compared and not all(row.significant for row in rivals):
        said += "No clear winner. "
    name = f"mean {best.score} over data sets" if dataset == MEAN else best.score
    value = number(best.value, best.digits)
    within = interval(best.low, best.high, best.digits, before=", 95% interval ")
    said += f"{best.system} has the best {name}: {value}{within}. "
    if not is_compared:
        return f"{said}It is not compared: that takes scores of the baseline and of another system."
    told: Any = rivals[0]
    apart = number(told.difference, told.digits, sign=True)
    ends = (told.diff_low, told.diff_high, told.digits)
    within = interval(*ends, before=", 95% interval ", sign=True)
    said += f"{told.system} differs from the baseline {of.baseline} by {apart}{within}: "
    if told.diff_over == "items":
        said += (
            "one seed cannot tell whether that is the chance of training, which the interval over "
            "test items leaves out; run at least three."
        )
    elif not told.diff_over:
        said += f"no test can be made ({told.diff_why})."
    else:
        found = "a significant difference" if told.significant else "it may be chance"
        said += f"{found} ({p_value(told.corrected_p)})."
    if len(known) > 2:
        said += (
            f" As the best of {len(known)} systems was chosen for its score, its lead is probably "
            f"overstated."
        )
    return said
