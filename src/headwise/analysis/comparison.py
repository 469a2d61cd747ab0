"""The scores of the systems of a comparison, with intervals, and tests against the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from headwise.analysis.results import TEST, ComparisonRecord, RunResult
from headwise.analysis.statistics import (
    SIGNIFICANT,
    Scores,
    estimate_difference,
    estimate_mean,
    holm,
)
from headwise.tasks.scores import Outcome, Score

RANKING = "first score"  # the family of the score that ranks the systems
_DIFFERENCE = ("low", "high", "variance_source", "reason")


@dataclass(frozen=True)
class SystemRuns:
    """The finished runs of a system, and the outcomes of those that did not diverge."""

    name: str
    runs: Sequence[RunResult]
    outcomes: Sequence[dict[str, Outcome]]  # by the name of the test set

    @property
    def converged(self) -> list[RunResult]:
        """The runs that did not diverge."""
        return [run for run in self.runs if not run.diverged]

    def scores(self, test: str, name: str) -> list[Score]:
        """Returns one score on one test set, of each seed."""
        outcomes = [outcome[test] for outcome in self.outcomes if test in outcome]
        return [score for out in outcomes for score in out.scores if score.name == name]


@dataclass(frozen=True)
class Comparison:
    """The finished runs of systems on the same data; the first system is the baseline.

    Attributes:
        about: what is compared.
        systems: their runs.
        lost: runs that are missing from means, and the reason.
    """

    about: ComparisonRecord
    systems: Sequence[SystemRuns]
    lost: dict[str, str]

    @property
    def baseline(self) -> str:
        """The name of the system with which others are compared."""
        return self.systems[0].name

    @property
    def runs(self) -> list[RunResult]:
        """The finished runs of all systems."""
        return [run for system in self.systems for run in system.runs]

    @cached_property
    def scores(self) -> pd.DataFrame:
        """All scores, not rounded: a row for each score of each system on each test set.

        `value` is the mean of what is finite `of_seeds`, with its 95% interval from `low` to
        `high`; `difference` is the difference to the baseline, from `diff_low` to `diff_high`, with
        its `p`, and `corrected_p` by Holm's method over its `family`: the first score on the test
        part, the first score on all further test sets, or all other scores. `variance_source` says
        over what an interval is, and `reason` why there is none.
        """
        columns = self._columns()
        families = [family for *_, family in columns]
        rows = []
        for test, score, family in columns:
            of_seeds = [system.scores(test, score.name) for system in self.systems]
            all_scores = [Scores.from_runs(runs) for runs in of_seeds]
            comparisons = families.count(family) * (len(self.systems) - 1)
            for system, runs, scores in zip(self.systems, of_seeds, all_scores, strict=True):
                mean = estimate_mean(scores)
                row = {
                    "family": family,
                    "test": test,
                    "score": score.name,
                    "lower_is_better": score.lower_is_better,
                    "digits": score.digits,
                    "system": system.name,
                    "of_seeds": [run.value for run in runs],
                    "value": mean.value,
                    **{name: getattr(mean, name) for name in _DIFFERENCE},
                }
                if system.name != self.baseline:
                    change = estimate_difference(scores, all_scores[0], tests=comparisons)
                    row |= {"difference": change.value, "detectable": change.detectable}
                    row |= {f"diff_{name}": getattr(change, name) for name in _DIFFERENCE}
                    # A p over items alone says nothing of systems: another seed may reverse it.
                    # Where a reason forbids an interval, it forbids a verdict too.
                    if "seeds" in change.variance_source and not change.reason:
                        row["p"] = change.p
                rows.append(row)
        table = pd.DataFrame(rows, columns=_COLUMNS)
        table = table.astype(dict.fromkeys(("difference", "detectable", "p"), float))
        p_values = table.groupby("family")["p"]
        table["corrected_p"] = p_values.transform(lambda p: pd.Series(holm(p), p.index))
        table["significant"] = table["corrected_p"] < SIGNIFICANT
        return table

    def _columns(self) -> list[tuple[str, Score, str]]:
        """Lists test set, score and family of each column; the score that ranks comes first."""
        by_test: dict[str, dict[str, Score]] = {TEST: {}}
        for run in self.runs:
            for test, scores in {TEST: run.scores, **run.tests}.items():
                for score in scores:
                    by_test.setdefault(test, {}).setdefault(score.name, score)
        columns = []
        for test, by_name in by_test.items():
            family = RANKING if test == TEST else "first score on further test sets"
            for score in by_name.values():
                columns.append((test, score, family))
                family = "other scores"
        return columns


_COLUMNS = (
    *("family", "test", "score", "lower_is_better", "digits", "system", "of_seeds", "value"),
    *_DIFFERENCE,
    *("difference", *(f"diff_{name}" for name in _DIFFERENCE), "detectable", "p"),
)
