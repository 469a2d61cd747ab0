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
from headwise.analysis.statistics import Estimate, Scores, contrast, corrected, mean_of
from headwise.report.page import number
from headwise.runs.evaluate import TEST, read_outcome
from headwise.runs.folder import read_result
from headwise.runs.names import COMPARISON
from headwise.tasks.scores import Outcome, Score

MEAN = "mean"  # over data sets, in the place of the name of one
# Three of four is what simulations find with three seeds; see docs/statistics.md.
FOUND = "about three of four such comparisons"
_NO_DIFFERENCE = Estimate(math.nan)


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
        """One score on one test set."""
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
    difference: Estimate | None  # None of the baseline


@dataclass(frozen=True)
class Comparison:
    """Systems on one data set, the baseline first."""

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
        """The scores of some columns of a table that has so many differences."""
        found = []
        for test, score in columns:
            base = self.scores[test, score.name, self.baseline]
            for system in self.systems:
                own = self.scores[test, score.name, system.name]
                apart = None if own is base else contrast(own, base, tests=tests)
                at = (self.dataset, test, score, system.name)
                found.append(Cell(*at, own.values, contrast(own), apart))
        return found

    @property
    def ranking(self) -> list[Cell]:
        """The score that ranks the systems, in their order; nothing if nothing was evaluated."""
        return self.cells[: len(self.systems)]


def _corrected(cells: Sequence[Cell]) -> list[Cell]:
    """The scores of one table, with corrected p."""
    found = iter(corrected([c.difference for c in cells if c.difference is not None]))
    return [c if c.difference is None else replace(c, difference=next(found)) for c in cells]


def read_comparison(folder: Path) -> list[Comparison]:
    """Reads what is compared in a folder, of each of its data sets.

    Raises:
        FolderError: a file of a finished run cannot be read.
    """
    text = (folder / COMPARISON).read_text(encoding="utf-8")
    if "datasets" in json.loads(text):
        names = Benchmark.model_validate_json(text).datasets
        return [
            replace(of, dataset=name) for name in names for of in read_comparison(folder / name)
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
    return [Comparison("", compared, list(systems.values()), missing)]


def over_data_sets(comparisons: Sequence[Comparison]) -> list[Cell]:
    """The first score on each data set, and its mean over them if all have the same, as a table."""
    names = {of.columns[0][1].name if of.columns else "" for of in comparisons}
    has_mean = len(names) == 1 and "" not in names
    baseline, *others = [system.name for system in comparisons[0].systems]
    tests = (len(comparisons) + has_mean) * len(others)
    found = [cell for of in comparisons for cell in of.tested(of.columns[:1], tests)]
    for name in [baseline, *others] if has_mean else []:
        own = [cell for cell in found if cell.system == name]
        differences = [cell.difference for cell in own if cell.difference is not None]
        apart = mean_of(differences, tests) if differences else None
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
    """Scores as `results` returns them."""
    return pd.DataFrame([_row(cell, cell.difference or _NO_DIFFERENCE) for cell in cells])


def _row(cell: Cell, apart: Estimate) -> dict[str, object]:
    return {
        "dataset": cell.dataset,
        "test": cell.test,
        "score": cell.score.name,
        "system": cell.system,
        "seeds": len(cell.values),
        "deviation": deviation(cell.values),
        **{name: getattr(cell.mean, name) for name in ("value", "low", "high", "over", "why")},
        "difference": apart.value,
        **{f"diff_{name}": getattr(apart, name) for name in ("low", "high", "over", "why")},
        **{name: getattr(apart, name) for name in ("p", "corrected_p", "detectable")},
        "significant": apart.significant,
    }


def deviation(values: Sequence[float] | np.ndarray) -> float:
    """The standard deviation over seeds; NaN of one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


# --- the verdict ------------------------------------------------------------------------------


def verdict(folder: Path) -> str:
    """Which system is best, by how much, and whether that may be chance, in a few sentences."""
    return verdict_of(read_comparison(folder))


def verdict_of(comparisons: Sequence[Comparison]) -> str:
    """The verdict on one data set or on several; before it, a line on runs that are missing."""
    missing = [f"{of.dataset} {run}".strip() for of in comparisons for run in of.missing]
    asked = sum(len(of.compared.runs) for of in comparisons)
    found = on_one(comparisons[0]) if len(comparisons) == 1 else _on_several(comparisons)
    if not missing:
        return found
    finished = f"{asked - len(missing)} of {asked} runs are finished"
    return f"{finished}; these are missing: {', '.join(missing)}.\n{found}"


def on_one(of: Comparison) -> str:
    """The verdict on one data set."""
    lost = [system.name for system in of.systems if system.runs and not system.sound]
    known = [cell for cell in of.ranking if math.isfinite(cell.mean.value)]
    if not of.runs:
        return "No run is finished."
    if len(lost) == len({run.system for run in of.runs}):
        return "All runs diverged: there is no result."
    if not known:
        return "No system has a score: there are losses alone."
    best, told, text = _ranked(known, of.baseline, of.compared.item_name)
    if told is best:
        text += _cost(of, best.system)
    sentences = [f"{text}."]
    if best.system == of.baseline and len(known) == 1 < len(of.systems):
        sentences.append("No other system has a score.")
    if of.baseline not in [cell.system for cell in known]:
        sentences.append(f"The baseline {of.baseline} has no score to compare it with.")
    sentences += _of_others(known, told, lost)
    if told is best and len(known) > 2:
        sentences.append(
            f"{best.system} was chosen after the fact as the best of {len(known)} systems, which "
            f"the interval does not know: expect a smaller lead with new seeds."
        )
    if any(cell.mean.over == "items" for cell in known) and len(known) > 1:
        sentences.append(
            "One seed says nothing of training's own chance, and another may reverse the order: "
            "several seeds can tell."
        )
    return " ".join(sentences)


def _ranked(known: Sequence[Cell], baseline: str, items: str) -> tuple[Cell, Cell | None, str]:
    """The best system; that whose difference to the baseline is told, if any; and the sentence."""
    sign = -1 if known[0].score.lower_is_better else 1
    # In a tie the baseline comes first: a system that is no better is not worth a change.
    ranked = sorted(known, key=lambda c: (-sign * c.mean.value, c.system != baseline))
    best, *others = ranked
    name = best.score.name if best.dataset != MEAN else f"mean {best.score.name} over data sets"
    value = _with_interval(best)
    if not others:
        return best, None, f"{best.system}: {name} {value}"
    base = next((cell for cell in known if cell.system == baseline), None)
    if base is None:
        return best, None, f"{best.system} has the best {name}, {value}"
    told = others[0] if best is base else best
    assert told.difference is not None
    clear = told.difference.significant
    if best is base:
        clear = all(c.difference is not None and c.difference.significant for c in others)
    gap = told.mean.value - base.mean.value
    size, way = number(abs(gap), best.score.digits), "above" if gap > 0 else "below"
    apart = f"{size} {way}" if float(size.replace(",", "")) else "level with"
    text = "" if clear else "No clear winner. "
    if best is base:
        text += f"The baseline {best.system} has the best {name}, {value}. The closest, "
        text += f"{told.system}, is {apart} it"
    else:
        text += f"{best.system} has the best {name}, {value}, {apart} the baseline {baseline}"
    return best, told, f"{text}: {_judged(told, items)}"


def _with_interval(cell: Cell) -> str:
    """A mean over seeds in words."""
    digits, mean = cell.score.digits, cell.mean
    remarks = [f"mean of {len(cell.values)} seeds"] if len(cell.values) > 1 else []
    if math.isfinite(mean.low):
        remarks.append(f"95% interval {number(mean.low, digits)} to {number(mean.high, digits)}")
    return number(mean.value, digits) + (f" ({', '.join(remarks)})" if remarks else "")


def _judged(cell: Cell, items: str) -> str:
    """Whether a difference to the baseline may be chance."""
    found, digits = cell.difference or _NO_DIFFERENCE, cell.score.digits
    low, high = (number(end, digits, sign=True) for end in (found.low, found.high))
    interval = f"95% interval {low} to {high}" if math.isfinite(found.low) else "no interval"
    if found.over == "items":
        return (
            f"one seed each cannot tell whether it is chance ({interval} over test {items} alone)"
        )
    if not found.over:
        return f"no test can be made ({found.why})"
    judged = "a significant difference" if found.significant else "the difference may be chance"
    text = f"{judged} ({interval}, {p_value(found.corrected_p)}"
    if not found.significant and math.isfinite(found.detectable):
        text += f"; {FOUND} would find a true difference of {number(found.detectable, digits)}"
    return f"{text})"


def p_value(p: float) -> str:
    """
    >>> p_value(0.0123), p_value(0.0001)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _cost(of: Comparison, name: str) -> str:
    own, base = (next(s.runs[0] for s in of.systems if s.name == n) for n in (name, of.baseline))
    text = f"{number(own.parameters / base.parameters, 2)}× the parameters"
    times = of.compared.step_times.get(name)
    return f", at {f'{number(times.value, 2)}× the time per step and ' if times else ''}{text}"


def _of_others(known: Sequence[Cell], told: Cell | None, lost: Sequence[str]) -> list[str]:
    """What the tests say of the systems that the first sentence does not name."""
    groups: dict[str, list[str]] = {"better": [], "worse": [], "open": []}
    for cell in known:
        found = cell.difference
        if cell is not told and found is not None and "seeds" in found.over:
            better = (found.value < 0) == cell.score.lower_is_better
            group = ("better" if better else "worse") if found.significant else "open"
            groups[group].append(cell.system)
    parts = [
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} "
        + ("not significantly different from" if group == "open" else f"significantly {group} than")
        for group, names in groups.items()
        if names
    ]
    said = [f"Of the others, {'; '.join(parts)} the baseline."] if parts else []
    return said + ([f"{listed(lost)} diverged."] if lost else [])


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _on_several(comparisons: Sequence[Comparison]) -> str:
    """The verdict on several data sets: the mean, and on how many each system is better."""
    cells, baseline = over_data_sets(comparisons), comparisons[0].baseline
    means = [c for c in cells if c.dataset == MEAN and math.isfinite(c.mean.value)]
    items = listed(list(dict.fromkeys(of.compared.item_name for of in comparisons)))
    sentences = [f"{_ranked(means, baseline, items)[2]}."] if means else []
    for system in comparisons[0].systems[1:]:
        own = [c for c in cells if c.system == system.name and c.dataset != MEAN]
        tested = [(c, d) for c in own if (d := c.difference) is not None and "seeds" in d.over]
        stars = [(d.value < 0) == c.score.lower_is_better for c, d in tested if d.significant]
        better, worse = sum(stars), len(stars) - sum(stars)
        if tested:
            sentences.append(
                f"{system.name} is significantly better than {baseline} on {better}, and "
                f"significantly worse on {worse}, of {len(tested)} data sets."
            )
    return " ".join(sentences) or "No system has scores on all data sets."
