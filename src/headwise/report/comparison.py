"""The report of a comparison: which system is best, whether that may be chance, at what cost.

It is made from the folders of finished runs and from `comparison.json` beside them. A run that
diverged is in no mean. p-values are corrected by Holm's method over the table that they are of.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from headwise.analysis.results import Benchmark, Compared, RunResult
from headwise.analysis.speed import OverRounds
from headwise.analysis.statistics import SIGNIFICANT, Estimate, Scores, contrast, corrected, mean_of
from headwise.report.page import NONE, Section, axes, look, number, short, write_page
from headwise.runs.evaluate import TEST, read_outcome
from headwise.runs.folder import read_result
from headwise.runs.names import COMPARISON
from headwise.tasks.scores import Outcome, Score

PAGE = "report.html"
_SAMPLES, _PICTURES = 12, 6  # shown at once
_LETTERS = 22  # of a name in a figure


@dataclass(frozen=True)
class System:
    """A system over its seeds."""

    name: str
    runs: list[RunResult]  # all that are finished
    outcomes: list[dict[str, Outcome]]  # on each test set, of those that did not diverge

    @property
    def sound(self) -> list[RunResult]:
        """The runs that did not diverge."""
        return [run for run in self.runs if not run.diverged]

    def scores(self, test: str, name: str) -> Scores:
        """One score on one test set."""
        found = [outcome[test].scores for outcome in self.outcomes if test in outcome]
        return Scores.of([score for of_run in found for score in of_run if score.name == name])


@dataclass(frozen=True)
class Cell:
    """One score of one system, and its difference to the baseline's."""

    dataset: str
    test: str
    score: Score
    system: str
    values: np.ndarray  # of the seeds
    mean: Estimate
    difference: Estimate | None  # None of the baseline


@dataclass(frozen=True)
class Comparison:
    """Systems on one data set, the baseline first."""

    dataset: str  # its name among several
    of: Compared
    systems: list[System]
    missing: list[str]  # runs that are not finished

    @property
    def runs(self) -> list[RunResult]:
        """The finished runs of all systems."""
        return [run for system in self.systems for run in system.runs]

    @cached_property
    def columns(self) -> list[tuple[str, Score]]:
        """Every score with its test set, in order; the first ranks the systems."""
        found: dict[tuple[str, str], tuple[str, Score]] = {}
        for run in self.runs:
            for test, scores in [(TEST, run.scores), *run.tests.items()]:
                for score in scores:
                    found.setdefault((test, score.name), (test, score))
        return sorted(found.values(), key=lambda column: column[0] != TEST)

    @property
    def first(self) -> Score | None:
        """The score by which systems are ranked; None if nothing was evaluated."""
        return self.columns[0][1] if self.columns else None

    @cached_property
    def cells(self) -> list[Cell]:
        """All scores, with p-values corrected over those that are tested together.

        Together are the first score; the first score of each further test set; all other scores.
        """
        firsts = {test: score.name for test, score in reversed(self.columns)}
        families: dict[str, list[tuple[str, Score]]] = {}
        for test, score in self.columns:
            is_first = firsts[test] == score.name
            family = "others" if not is_first else "first" if test == TEST else "tests"
            families.setdefault(family, []).append((test, score))
        return [cell for of in families.values() for cell in corrected_cells(self.tested(of))]

    def tested(self, columns: Sequence[tuple[str, Score]], tests: int = 0) -> list[Cell]:
        """The scores of some columns; `tests` is how many differences their table has."""
        tests, found = tests or len(columns) * (len(self.systems) - 1), []
        for test, score in columns:
            base, *others = [system.scores(test, score.name) for system in self.systems]
            differences = [None, *(contrast(other, base, tests=tests) for other in others)]
            for system, own, each in zip(self.systems, [base, *others], differences, strict=True):
                at = (self.dataset, test, score, system.name)
                found.append(Cell(*at, own.values, contrast(own), each))
        return found


def corrected_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The scores of one table, with corrected p-values."""
    tested = [cell.difference for cell in cells if cell.difference is not None]
    found = iter(corrected(tested))
    return [c if c.difference is None else replace(c, difference=next(found)) for c in cells]


def read_comparison(folder: Path) -> list[Comparison]:
    """What is compared in a folder: a comparison for each of its data sets.

    Raises:
        FolderError: a file of a run cannot be read.
    """
    text = (folder / COMPARISON).read_text(encoding="utf-8")
    if "datasets" in json.loads(text):
        names = Benchmark.model_validate_json(text).datasets
        return [replace(found, dataset=n) for n in names for found in read_comparison(folder / n)]
    of = Compared.model_validate_json(text)
    results = {name: read_result(folder / name) for name in of.runs}
    systems = {name: System(name, [], []) for name in of.systems}
    for name, result in results.items():
        if result is None:
            continue
        systems[of.runs[name]].runs.append(result)
        if result.scores and not result.diverged:
            tests = (TEST, *result.tests)
            outcomes = {test: read_outcome(folder / name, test) for test in tests}
            systems[of.runs[name]].outcomes.append(outcomes)
    missing = [name for name, result in results.items() if result is None]
    return [Comparison("", of, list(systems.values()), missing)]


def results(folder: Path) -> pd.DataFrame:
    """All scores of a comparison, not rounded: a row for each score of each system.

    `value` is the mean over seeds with its interval from `low` to `high`; `difference` is that to
    the baseline, with `diff_low`, `diff_high`, and `p` after Holm's correction. NaN: there is none,
    and `why` says why. `over` is whose chance it is. The data set `mean` is the mean over all.
    """
    return _frame([cell for cell in _all_cells(read_comparison(folder))])


def _frame(cells: Iterable[Cell]) -> pd.DataFrame:
    none = Estimate(math.nan)
    return pd.DataFrame(
        [
            {
                "dataset": cell.dataset,
                "test": cell.test,
                "score": cell.score.name,
                "system": cell.system,
                "seeds": len(cell.values),
                "value": cell.mean.value,
                "deviation": _deviation(cell.values),
                "low": cell.mean.low,
                "high": cell.mean.high,
                "over": cell.mean.over,
                "why": cell.mean.why,
                "difference": found.value,
                "diff_low": found.low,
                "diff_high": found.high,
                "p": found.p,
                "corrected_p": found.corrected_p,
                "significant": found.significant,
                "detectable": found.detectable,
                "diff_over": found.over,
                "diff_why": found.why,
            }
            for cell in cells
            for found in [cell.difference or none]
        ]
    )


def _all_cells(comparisons: Sequence[Comparison]) -> list[Cell]:
    if len(comparisons) == 1:
        return comparisons[0].cells
    first = over_data_sets(comparisons)
    known = {(cell.dataset, cell.test, cell.score.name) for cell in first}
    others = [cell for each in comparisons for cell in each.cells]
    return first + [c for c in others if (c.dataset, c.test, c.score.name) not in known]


def over_data_sets(comparisons: Sequence[Comparison]) -> list[Cell]:
    """The first score on each data set, and its mean over them, as one table."""
    scores = [each.first for each in comparisons if each.first is not None]
    shared = len({score.name for score in scores}) == 1 and len(scores) == len(comparisons)
    systems = list(dict.fromkeys(s.name for each in comparisons for s in each.systems))
    tests = (len(scores) + shared) * (len(systems) - 1)
    found = [c for each in comparisons for c in each.tested(each.columns[:1], tests)]
    for system in systems if shared else []:
        own = [cell for cell in found if cell.system == system]
        values = mean_of([cell.mean for cell in own])
        differences = [cell.difference for cell in own if cell.difference is not None]
        difference = mean_of(differences, tests) if differences else None
        found.append(Cell("mean", TEST, scores[0], system, np.array([]), values, difference))
    return corrected_cells(found)


# --- numbers in words -------------------------------------------------------------------------


def _deviation(values: Sequence[float] | np.ndarray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _interval(low: float, high: float, digits: int, *, sign: bool = False) -> str:
    if not math.isfinite(low + high):
        return ""
    return f"[{number(low, digits, sign=sign)}, {number(high, digits, sign=sign)}]"


def _joined(*lines: str) -> str:
    return "\n".join(filter(None, lines))


def _spread(values: Sequence[float] | np.ndarray, digits: int) -> str:
    return f"± {number(_deviation(values), digits)}" if len(values) > 1 else ""


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _value(cell: Cell) -> str:
    """A mean over seeds, their standard deviation, and its interval."""
    if not math.isfinite(cell.mean.value):
        return NONE
    mean, digits = cell.mean, cell.score.digits
    value, spread = number(mean.value, digits), _spread(cell.values, digits)
    return _joined(value, spread, _interval(mean.low, mean.high, digits))


def _difference(cell: Cell) -> str:
    """A difference to the baseline, with a star if it is significant, and its interval."""
    found, digits = cell.difference, cell.score.digits
    if found is None:
        return "baseline"
    value = number(found.value, digits, sign=True) + " *" * found.significant
    return _joined(value, _interval(found.low, found.high, digits, sign=True))


def _times(ratio: OverRounds | None) -> str:
    if ratio is None:
        return NONE
    ends = "" if ratio.low == ratio.high else f"{number(ratio.low, 2)}–{number(ratio.high, 2)}"
    return _joined(f"{number(ratio.value, 2)}×", ends)


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _heading(name: str) -> str:
    return name[:1].upper() + name[1:] if name[1:2].islower() else name


def _shortened(name: str) -> str:
    """Leaves out the middle of a long name, since similar names differ at the end."""
    half = (_LETTERS - 1) // 2
    return name if len(name) <= _LETTERS else f"{name[:half]}…{name[-half:]}"


def _chance(over: Iterable[str], items: str) -> str:
    """Whose chance intervals hold."""
    said = {
        "seeds and items": f"over seeds and test {items} together",
        "seeds": "over seeds alone",
        "items": f"over test {items} alone",
    }
    return " or ".join(text for source, text in said.items() if source in set(over))


# --- the verdict ------------------------------------------------------------------------------


def verdict(folder: Path) -> str:
    """Which system is best, by how much, and whether that may be chance, in a few sentences."""
    comparisons = read_comparison(folder)
    if len(comparisons) == 1:
        return _joined(_unfinished(comparisons), _verdict(comparisons[0]))
    return _joined(_unfinished(comparisons), _verdict_of_data_sets(comparisons))


def _unfinished(comparisons: Sequence[Comparison]) -> str:
    missing = [f"{of.dataset} {run}".strip() for of in comparisons for run in of.missing]
    asked = sum(len(of.of.runs) for of in comparisons)
    if not missing:
        return ""
    done = asked - len(missing)
    return f"{done} of {asked} runs are finished; these are missing: {', '.join(missing)}."


def _verdict(of: Comparison) -> str:
    score, lost = of.first, [s.name for s in of.systems if s.runs and not s.sound]
    if not any(system.sound for system in of.systems):
        return "All runs diverged: there is no result." if of.runs else "No run is finished."
    if score is None:
        return "Nothing was evaluated: there are losses alone."
    baseline = of.systems[0].name
    sign = -1 if score.lower_is_better else 1
    known = {c.system: c for c in of.cells if (c.test, c.score.name) == (TEST, score.name)}
    known = {name: c for name, c in known.items() if math.isfinite(c.mean.value)}
    if not known:
        return f"No system has a finite {score.name}."
    # In a tie the baseline comes first: a system that is no better is not worth a change.
    ranked = sorted(known.values(), key=lambda c: (-sign * c.mean.value, c.system != baseline))
    best, *others = ranked
    text = [f"{best.system} has the best {score.name}: {_in_words(best)}"]
    if best.system != baseline and baseline in known:
        text = [f"{text[0]}, {_apart(best, known[baseline], of)}{_cost(of, best.system)}."]
    elif others and best.system == baseline:
        text = [
            f"The baseline {text[0]}. The closest, {others[0].system}, is {_apart(others[0], best, of)}."
        ]
    elif others or len(of.systems) == 1:
        text = [f"{text[0] if others else f'{best.system} has {_in_words(best)} {score.name}'}."]
    else:
        text = [f"Only {best.system} gave a result: {_in_words(best)} {score.name}."]
    told = best if best.system != baseline else (others or [best])[0]
    groups: dict[str, list[str]] = {"significantly better than": [], "significantly worse than": []}
    groups["not significantly different from"] = []
    for cell in others:
        found = cell.difference
        if cell is told or found is None or "seeds" not in found.over:
            continue
        way = "better" if sign * found.value > 0 else "worse"
        group = (
            f"significantly {way} than" if found.significant else "not significantly different from"
        )
        groups[group].append(cell.system)
    parts = [
        f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {how} the baseline"
        for how, names in groups.items()
        if names
    ]
    if parts:
        text.append(f"Of the others, {'; '.join(parts)}.")
    if lost:
        text.append(f"{_listed(lost)} diverged.")
    if best.system != baseline and len(ranked) > 2:
        text.append(
            f"{best.system} was chosen after the fact as the best of {len(ranked)} systems, which "
            f"its interval does not know: expect a smaller lead from new seeds."
        )
    if any(c.difference is not None and c.difference.over == "items" for c in ranked):
        text.append(
            "With one seed nothing can be said of the chance of training: another seed may turn "
            "the order round (--seeds 1,2,3)."
        )
    return " ".join(text)


def _in_words(cell: Cell) -> str:
    digits, mean = cell.score.digits, cell.mean
    remarks = [f"mean of {len(cell.values)} seeds"] * (len(cell.values) > 1)
    if math.isfinite(mean.low):
        remarks.append(f"95% interval {number(mean.low, digits)} to {number(mean.high, digits)}")
    return number(mean.value, digits) + (f" ({', '.join(remarks)})" if remarks else "")


def _apart(cell: Cell, other: Cell, of: Comparison) -> str:
    """How far one of two systems is from the other, and whether that may be chance.

    One of the two is the baseline, and the other has the difference.
    """
    gap, digits = cell.mean.value - other.mean.value, cell.score.digits
    found = cell.difference if cell.difference is not None else other.difference
    assert found is not None
    who = f"the baseline {other.system}" if other.difference is None else other.system
    way = "above" if gap > 0 else "below"
    size = f"{number(abs(gap), digits)} {way} {who}" if gap else f"level with {who}"
    interval = "no interval"
    if math.isfinite(found.low):
        low, high = (number(end, digits, sign=True) for end in (found.low, found.high))
        interval = f"95% interval {low} to {high}"
    if "seeds" not in found.over:
        over = f" over test {of.of.item_name} alone" if found.over else f", {found.why}"
        return f"{size} ({interval}{over})"
    judged = "a significant difference" if found.significant else "which may be chance"
    return f"{size}, {judged} ({interval}, {_p(found.corrected_p)})"


def _cost(of: Comparison, name: str) -> str:
    times = of.of.step_times.get(name)
    first = {system.name: system.runs[0].parameters for system in of.systems if system.runs}
    size = f"{number(first[name] / first[of.systems[0].name], 2)}× the parameters"
    return (
        f", at {number(times.value, 2)}× the time per step and {size}" if times else f", at {size}"
    )


def _verdict_of_data_sets(comparisons: Sequence[Comparison]) -> str:
    cells, baseline = over_data_sets(comparisons), comparisons[0].systems[0].name
    text, number_of = [], len(comparisons)
    means = [c for c in cells if c.dataset == "mean" and math.isfinite(c.mean.value)]
    if means:
        score = means[0].score
        sign = -1 if score.lower_is_better else 1
        best = max(means, key=lambda c: (sign * c.mean.value, c.system == baseline))
        over = f"mean {score.name} over {number_of} data sets"
        base = next((c for c in means if c.system == baseline), None)
        text.append(f"{best.system} has the best {over}: {_in_words(best)}")
        if base is not None and base is not best:
            text[0] += f", {_apart(best, base, comparisons[0])}"
        text[0] += "."
    for system in [s.name for s in comparisons[0].systems[1:]]:
        own = [c for c in cells if c.system == system and c.dataset != "mean" and c.difference]
        stars = [c for c in own if c.difference is not None and c.difference.significant]
        better = sum((c.difference.value < 0) == c.score.lower_is_better for c in stars)  # type: ignore[union-attr]
        text.append(
            f"{system} is significantly better than {baseline} on {better}, and significantly "
            f"worse on {len(stars) - better}, of {len(own)} data sets."
        )
    return " ".join(text)


# --- tables -----------------------------------------------------------------------------------


def main_table(of: Comparison) -> pd.DataFrame:
    """Size, cost, loss and the first score of each system, with its difference to the baseline."""
    digits = _loss_digits(of)
    first = {c.system: c for c in of.cells if (c.test, c.score) == (TEST, of.first)}
    trained = any(run.trained_parameters is not None for run in of.runs)
    rows = {}
    for system in of.systems:
        row: dict[str, str] = {"Seeds": _seeds(system)}
        if system.runs:
            run = system.runs[0]
            learned = run.parameters if run.trained_parameters is None else run.trained_parameters
            losses = [each.validation_loss for each in system.sound]
            row |= {
                "Parameters": short(run.parameters),
                **({"Trained parameters": short(learned)} if trained else {}),
                "MACs": short(run.macs),
                "Time per step": _times(of.of.step_times.get(system.name)),
                "Validation loss": _joined(
                    number(float(np.mean(losses)), digits), _spread(losses, digits)
                )
                if losses
                else "diverged",
            }
        if of.first is not None:
            cell = first[system.name]
            difference = cell.difference
            row |= {
                _heading(of.first.name): _value(cell)
                if system.sound
                else "diverged"
                if system.runs
                else NONE
            }
            row |= {"Difference": _difference(cell)}
            if difference is not None and "seeds" in difference.over:
                p = _p(difference.corrected_p).removeprefix("p ").removeprefix("= ")
                row |= {"p": p, "Detectable": number(difference.detectable, of.first.digits)}
            else:
                row |= {"p": NONE, "Detectable": NONE}
        about = _joined(of.of.systems[system.name], of.of.matched.get(system.name, ""))
        rows[system.name] = row | {"About": about.replace("\n", "; ")}
    table = pd.DataFrame.from_dict(rows, orient="index").fillna(NONE)
    table.index.name = "System"
    return table if table["About"].any() else table.drop(columns="About")


def _seeds(system: System) -> str:
    lost = len(system.runs) - len(system.sound)
    return _joined(str(len(system.runs)), f"{lost} diverged" if lost else "")


def _loss_digits(of: Comparison) -> int:
    """Decimals of the loss: three, or more if it is small, for three significant digits."""
    losses = [abs(run.validation_loss) for run in of.runs if not run.diverged]
    least = min(filter(None, losses), default=1.0)
    return min(8, max(3, 2 - math.floor(math.log10(least))))


def scores_table(cells: Sequence[Cell], columns: dict[tuple[str, str, str], str]) -> pd.DataFrame:
    """A column for each score: its mean, interval, and difference to the baseline."""
    found: dict[str, dict[str, str]] = {}
    for cell in cells:
        name = columns.get((cell.dataset, cell.test, cell.score.name))
        if name is None:
            continue
        value, *rest = _value(cell).split("\n")
        if cell.difference is not None and math.isfinite(cell.difference.value):
            rest.append("difference " + _difference(cell).replace(" *", "").replace("\n", " "))
            value += " *" * cell.difference.significant
        found.setdefault(cell.system, {})[name] = _joined(value, *rest)
    table = pd.DataFrame.from_dict(found, orient="index").fillna(NONE)
    table.index.name = "System"
    return table.reindex(
        columns=[name for name in dict.fromkeys(columns.values()) if name in table]
    )


def results_table(folder: Path) -> Table:
    """The table of a comparison for a terminal."""
    comparisons = read_comparison(folder)
    if len(comparisons) == 1:
        (of,) = comparisons
        frame = main_table(of).drop(
            columns=["About", "Detectable", "MACs", "Seeds"], errors="ignore"
        )
        frame = frame.rename(columns={"Time per step": "Time", "Validation loss": "Loss"})
        further = [(test, score) for test, score in of.columns if test != TEST]
        names = {("", test, score.name): f"{test}\n{score.name}" for test, score in further}
        frame = frame.join(scores_table(of.cells, names))
        title, cells = of.of.title, of.cells
    else:
        frame, cells = _data_sets_table(comparisons), over_data_sets(comparisons)
        title = comparisons[0].of.title
    table = Table(
        title=Text(title, style="bold"), box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    table.add_column("System", overflow="fold", min_width=9)
    for column in frame.columns:
        table.add_column(Text(str(column)), justify="right", no_wrap=True)
    for name, row in frame.iterrows():
        table.add_row(Text(str(name), style="bold"), *(Text(str(cell)) for cell in row))
    table.caption = Text(" ".join(_notes(comparisons[0], cells)[:3]))
    table.caption_justify = "left"
    return table


def _notes(of: Comparison, cells: Sequence[Cell]) -> list[str]:
    """How to read scores and differences."""
    notes = []
    for lower, way in ((False, "higher"), (True, "lower")):
        names = dict.fromkeys(c.score.name for c in cells if c.score.lower_is_better == lower)
        if names:
            notes.append(f"{_listed(list(names))}: {way} is better.")
    over = {c.mean.over for c in cells if math.isfinite(c.mean.low)}
    if over:
        spread = " ± is the standard deviation over seeds." * any(len(c.values) > 1 for c in cells)
        notes.append(f"In brackets: 95% intervals {_chance(over, of.of.item_name)}.{spread}")
    tested = [c for c in cells if c.difference is not None]
    if any("seeds" in c.difference.over for c in tested if c.difference):
        notes.append(
            f"* p < {SIGNIFICANT} against {of.systems[0].name}, corrected by Holm's method for all "
            f"comparisons of a table; intervals are not corrected."
        )
    why = {
        c.difference.why or "a single seed"
        for c in tested
        if c.difference and "seeds" not in c.difference.over
    }
    if why:
        notes.append(
            f"No p and no star where there is {_listed(sorted(why))}: one seed says nothing of "
            f"training's own chance, and another may turn a difference round."
        )
    return notes


# --- sections ---------------------------------------------------------------------------------


def _dots(of: Comparison, *, differences: bool) -> Figure | None:
    """The first score of each system and seed, or its difference to the baseline."""
    cells = [c for c in of.cells if (c.test, c.score) == (TEST, of.first)]
    rows = [(n, c, c.difference if differences else c.mean) for n, c in enumerate(cells)]
    rows = [(n, c, e) for n, c, e in rows if e is not None and math.isfinite(e.value)]
    if not rows or len(cells) < 2:
        return None
    score = cells[0].score
    figure, (plot,) = axes(height=0.9 + 0.36 * len(rows))
    if differences:
        plot.axvline(0, color="#777777", linewidth=1.2)
    for row, (n, cell, found) in enumerate(rows):
        style = look(n)
        plot.plot(
            [found.low, found.high], [row, row], color=style["color"], marker="|", linewidth=2
        )
        filled = style["color"] if not differences or found.significant else "white"
        plot.plot(
            found.value,
            row,
            marker=style["marker"],
            color=style["color"],
            markerfacecolor=filled,
            markersize=8,
        )
        if not differences and len(cell.values) > 1:
            plot.plot(
                cell.values,
                [row + 0.25] * len(cell.values),
                style["marker"],
                color=style["color"],
                alpha=0.5,
                markersize=4,
            )
    plot.set_yticks(range(len(rows)), [_shortened(c.system) for _, c, _ in rows])
    plot.set_ylim(len(rows) - 0.5, -0.5)
    plot.grid(visible=False, axis="y")
    name = _heading(score.name)
    plot.set_xlabel(
        f"{name}, difference to {_shortened(of.systems[0].name)}" if differences else name
    )
    return figure


def quality(of: Comparison) -> Section:
    """The main table, with the scores and their differences drawn."""
    cells = [c for c in of.cells if (c.test, c.score) == (TEST, of.first)]
    lengths = of.runs[0].macs_lengths
    over = " and ".join(f"{length:,} positions in the {stack}" for stack, length in lengths.items())
    if len(lengths) == 1:
        over = f"a sequence of {next(iter(lengths.values())):,}"
    notes = [
        *_notes(of, cells),
        f"MACs: multiply-accumulates of one forward pass over {over}. Time per step: forward and "
        f"backward, over the baseline's; the median of rounds in which all systems take turns, with "
        f"its 95% interval. Loss: {of.of.loss_name}, on the validation part.",
    ]
    if any(c.difference is not None and math.isfinite(c.difference.detectable) for c in cells):
        notes.append(
            "Detectable: the true difference that about three of four such comparisons would show "
            "to be significant. Where it is large, the lack of a star does not mean that systems "
            "are alike."
        )
    if of.of.matched:
        notes.append(
            "Sizes were chosen by --match, for about as many parameters as the baseline has."
        )
    if of.of.tuning:
        notes.append("Every system had the same tries on the validation part: see How it was made.")
    if any(run.diverged for run in of.runs):
        notes.append("Runs that diverged are left out of all means.")
    figures = [_dots(of, differences=True), _dots(of, differences=False)]
    shown = [figure for figure in figures if figure is not None]
    return Section("Quality and cost", "", main_table(of), shown, notes=notes + _early_stops(of))


def _early_stops(of: Comparison) -> list[str]:
    found = []
    for run in of.runs:
        if run.early_stop is not None:
            best = run.early_stop.best_step
            lowest = (
                f", its lowest validation loss was at step {best:,}" if best is not None else ""
            )
            why = (
                "its validation loss is no number"
                if run.diverged
                else "no better validation loss came"
            )
            found.append(
                f"{run.system} with seed {run.seed} ended at step {run.steps:,} of "
                f"{run.early_stop.planned_steps:,}, since {why}{lowest}."
            )
    return found


def other_scores(of: Comparison) -> Section | None:
    """Further scores, and further test sets: all are columns of one table."""
    columns = {
        ("", test, score.name): score.name if test == TEST else f"{test}\n{score.name}"
        for test, score in of.columns[1:]
    }
    if not columns:
        return None
    cells = [replace(c, dataset="") for c in of.cells if (c.test, c.score) != (TEST, of.first)]
    table = scores_table(cells, columns)
    return Section("Other scores", "", table, notes=_notes(of, cells))


def curve(run: RunResult, key: str) -> pd.Series:
    """The finite values of one figure of a run by step."""
    found = {row["step"]: row[key] for row in run.history if math.isfinite(row.get(key, math.nan))}
    return pd.Series(found, dtype=float)


def _mean_curve(system: System, key: str) -> pd.Series:
    """The mean over seeds, at those steps that all of them have."""
    curves = [curve(run, key) for run in system.sound or system.runs]
    return (
        pd.concat(curves, axis=1, join="inner").mean(axis=1) if curves else pd.Series(dtype=float)
    )


def _curves(
    of: Comparison, key: str, name: str, *, pale: str = "", start: float = 0.0
) -> Figure | None:
    """A figure over the steps of training: a line for each system, a thin one for each seed."""
    figure, (plot,) = axes(height=3.6)
    drawn = []
    for n, system in enumerate(of.systems):
        style, mean = look(n), _mean_curve(system, key)
        mean = mean[mean.index >= start]
        if pale:
            plot.plot(_mean_curve(system, pale), color=style["color"], linewidth=1.2, alpha=0.4)
        if mean.empty:
            continue
        label = _shortened(system.name) + ("" if system.sound else " (diverged)")
        every = max(1, len(mean) // 8)
        plot.plot(mean, **style, linewidth=2, markersize=5, markevery=every, label=label)
        drawn.append(mean)
        for run in system.runs if len(system.runs) > 1 else []:
            each = curve(run, key)
            thin = each[each.index >= start]
            plot.plot(
                thin, color=style["color"], linestyle=style["linestyle"], linewidth=0.8, alpha=0.6
            )
    if not drawn:
        return None
    if "loss" in key:
        # A run that explodes leaves through the top, which is where losses start.
        known = [run for run in of.runs if not run.diverged] or of.runs
        starts = [c.iloc[0] for run in known for c in [curve(run, key)[start:]] if len(c)]
        top, bottom = max(starts), min(float(mean.min()) for mean in drawn)
        room = 0.05 * (top - bottom) or 0.1
        plot.set_ylim(bottom - room, top + room)
    plot.set_xlabel("Step")
    plot.set_ylabel(name)
    plot.locator_params(axis="x", nbins=5, integer=True)
    figure.legend(
        loc="outside upper left", ncols=3, fontsize=10, handlelength=2.4, columnspacing=1.2
    )
    return figure


def _loss_over_loss(of: Comparison) -> Figure | None:
    """Validation loss against training loss, figure 2 of Ahmed et al. 2017."""
    figure, (plot,) = axes(height=3.6)
    drawn = False
    for n, system in enumerate(of.systems):
        for number_of, run in enumerate(system.sound):
            losses, at = curve(run, "loss"), curve(run, "eval_loss")
            if len(losses) < 2 or len(at) < 2:
                continue
            # A single record of the training loss is noisy: the line through those around it.
            smooth = losses.rolling(5, center=True, min_periods=1).mean()
            training = np.interp(at.index, smooth.index, smooth)
            style = look(n) | ({"marker": ""} if number_of else {})
            label = _shortened(system.name) if not number_of else None
            width = {"linewidth": 0.8, "alpha": 0.6} if number_of else {"linewidth": 1.6}
            plot.plot(
                training,
                at,
                **style,
                **width,
                markersize=4,
                markevery=max(1, len(at) // 8),
                label=label,
            )
            drawn = True
    if not drawn:
        return None
    plot.invert_xaxis()
    plot.set_xlabel("Training loss")
    plot.set_ylabel("Validation loss at the same step")
    figure.legend(
        loc="outside upper left", ncols=3, fontsize=10, handlelength=2.4, columnspacing=1.2
    )
    return figure


def _soon(of: Comparison) -> pd.DataFrame | None:
    """The lowest validation loss of each system, and when it has the baseline's lowest."""
    base = [curve(run, "eval_loss") for run in of.systems[0].sound]
    lows = [each.min() for each in base if len(each)]
    if not lows:
        return None
    target, digits, rows = float(np.mean(lows)), _loss_digits(of), {}
    for system in of.systems:
        curves = [c for run in system.sound if len(c := curve(run, "eval_loss"))]
        if not curves:
            continue
        reached = [_first_at(each, target) for each in curves]
        known = [step for step in reached if step is not None]
        rows[system.name] = {
            "Lowest validation loss": _joined(
                number(float(np.mean([c.min() for c in curves])), digits),
                _spread([c.min() for c in curves], digits),
            ),
            "At step": number(float(np.mean([c.idxmin() for c in curves])), 0),
            f"Steps to {number(target, digits)}": number(float(np.mean(known)), 0)
            if known
            else "never",
            "Seeds that reach it": f"{len(known)} of {len(curves)}",
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "System"
    return table


def _first_at(losses: pd.Series, target: float) -> float | None:
    """The step at which a loss is first down to a target, on straight lines between its records."""
    below = np.flatnonzero(losses.to_numpy() <= target + 1e-12)
    if not len(below):
        return None
    at = below[0]
    if at == 0:
        return float(losses.index[0])
    (x0, x1), (y0, y1) = losses.index[at - 1 : at + 1], losses.iloc[at - 1 : at + 1]
    return float(x0 + (x1 - x0) * (y0 - target) / (y0 - y1))


def learning(of: Comparison) -> Section:
    """Losses over training, and what the task measures beside them."""
    steps = [step for run in of.runs for step in curve(run, "eval_loss").index]
    figures = [_curves(of, "eval_loss", f"Loss, {of.of.loss_name}", pale="loss")]
    if len(set(steps)) >= 4:
        figures.append(
            _curves(of, "eval_loss", "Validation loss, second half", start=max(steps) / 2)
        )
    figures.append(_loss_over_loss(of))
    known = ("step", "epoch", "loss", "eval_loss", "seconds")
    keys = dict.fromkeys(key for run in of.runs for row in run.history for key in row)
    measured = [key for key in keys if key not in known and not _is_decision(key, of)]
    figures += [_curves(of, key, _heading(key)) for key in measured]
    says = (
        "Strong lines with marks are the loss on the validation part, pale lines the loss in "
        "training, which also counts what a recipe adds to it, such as label smoothing. Lines are "
        "means over seeds, thin ones the seeds."
    )
    notes = [
        "Steps: after how many the validation loss is first down to the mean of the baseline's "
        "lowest; between two validations it is taken to fall along a straight line.",
        "Validation against training loss: a system whose line lies lower generalises better for "
        "what it has fitted.",
    ]
    return Section("Learning", says, _soon(of), [f for f in figures if f is not None], notes=notes)


def _is_decision(key: str, of: Comparison) -> bool:
    """Whether a figure of the history is of one place of a model, see `RunResult.history`."""
    place = key.rpartition(" ")[2].partition("/")[0]
    return " " in key and any(place in run.units for run in of.runs)


def generation(of: Comparison) -> Section | None:
    """How fast systems generate."""
    if not of.of.decoding_times and not of.of.decoding_speeds:
        return None
    rows = {}
    for system in of.of.systems:
        speed = of.of.decoding_speeds.get(system)
        shown = (
            NONE
            if speed is None
            else _joined(number(speed.value, 0), f"{number(speed.low, 0)}–{number(speed.high, 0)}")
        )
        rows[system] = {
            "Time per token": _times(of.of.decoding_times.get(system)),
            "Tokens per second": shown,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "System"
    says = (
        "All systems write the same number of tokens behind the same ones, always the most "
        "probable, with the model of the first seed; the median of rounds in which they take "
        "turns, with its 95% interval."
    )
    return Section("Speed of generation", says, table)


def samples(of: Comparison) -> Section | None:
    """Outputs of all systems side by side, first those that differ."""
    first = {s.name: s.outcomes[0][TEST].samples for s in of.systems if s.outcomes}
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for name, own in first.items():
        for sample in own:
            found.setdefault(tuple(sample.given.items()), {})[name] = sample.made
    if not found:
        return None
    rows = []
    ordered = sorted(found.items(), key=lambda each: len(set(each[1].values())) == 1)
    for at, (given, made) in enumerate(ordered[:_SAMPLES], 1):
        expected = {text: label for label, text in given[1:]}
        rows += [(at, label, text, "") for label, text in given]
        rows += [
            (at, name, text, f"✓ as the {expected[text].lower()}" if text in expected else "")
            for name, text in made.items()
        ]
    table = pd.DataFrame(rows, columns=["Sample", "", "Text", " "]).set_index(["Sample", ""])
    says = "From the test part, which no system was trained on; of the first seed of each system."
    return Section("Samples", says, table)


def pictures(of: Comparison) -> Section | None:
    """Pictures of all systems side by side, once for those that have the same."""
    found: dict[tuple[str, int], dict[tuple[str, str], list[str]]] = {}
    for system in of.systems:
        seen: dict[str, int] = {}
        for each in system.outcomes[0][TEST].pictures if system.outcomes else []:
            seen[each.title] = seen.get(each.title, 0) + 1
            views = found.setdefault((each.title, seen[each.title]), {})
            views.setdefault((each.png, each.caption), []).append(system.name)
    if not found:
        return None
    shown: list[dict[str, str]] = [{}, {}]
    for at, ((title, n), views) in enumerate(found.items()):
        title = title if n == 1 else f"{title} ({n})"
        for (png, caption), names in views.items():
            everybody = 1 < len(names) == len([s for s in of.systems if s.outcomes])
            lines = _joined(
                title, "all systems" if everybody else ", ".join(names), caption.replace("\n", " ")
            )
            shown[at >= _PICTURES][lines] = png
    further = (
        {f"{len(found) - _PICTURES} more": [Section("", pictures=shown[1])]} if shown[1] else {}
    )
    return Section("Pictures", "Of the first seed of each system.", pictures=shown[0], more=further)


def how_made(of: Comparison) -> Section:
    """The data, every run, the recipe, versions and machine."""
    runs = [
        {
            "System": run.system,
            "Seed": str(run.seed),
            "Steps": run.steps,
            "Seconds": round(run.seconds),
            "Parameters": run.parameters,
            "MACs": run.macs,
            "Validation loss": f"{run.validation_loss:#.5g}" if not run.diverged else "diverged",
            **{s.name: number(s.value, s.digits + 1) for s in run.scores},
        }
        for run in of.runs
    ]
    facts = pd.DataFrame.from_dict(of.of.facts, orient="index")
    facts = facts.map(
        lambda x: NONE if pd.isna(x) else number(x, 0) if isinstance(x, (int, float)) else str(x)
    )
    facts.index.name = "Part"
    facts.columns = [_heading(str(name)) for name in facts.columns]
    notes = dict.fromkeys(f"{s.name} {s.note}" for run in of.runs for s in run.scores if s.note)
    made = "\n".join(
        [f"machine {of.of.machine}", *(f"{n} {v}" for n, v in of.of.versions.items()), *notes]
    )
    more: dict[str, Any] = {"Command": of.of.command, "Recipe": of.of.recipe}
    more |= {"Every run": pd.DataFrame(runs).set_index("System")}
    more |= (
        {
            "Scores, not rounded": _frame(of.cells)
            .set_index(["test", "score", "system"])
            .drop(columns="dataset")
        }
        if of.cells
        else {}
    )
    more |= {"Versions, machine and how scores were counted": made}
    return Section("How it was made", "", facts if len(facts) else None, more=more | _tuning(of))


def _tuning(of: Comparison) -> dict[str, Any]:
    rows = [
        {
            "System": system,
            **{key: str(value) for key, value in each.values.items()},
            "Validation loss": "diverged" if each.diverged else f"{each.validation_loss:#.5g}",
            "Steps": each.steps,
            "Seconds": round(each.seconds),
            "Chosen": at == tries.chosen,
        }
        for system, tries in of.of.tuning.items()
        for at, each in enumerate(tries.tries)
    ]
    if not rows:
        return {}
    seed = next(iter(of.of.tuning.values())).seed
    notes = [f"{system}: {note}" for system, tries in of.of.tuning.items() for note in tries.notes]
    says = (
        f"Every system had the same choice of values. A try trained it with one combination of them "
        f"and with seed {seed}, which no run has, and was judged by the loss on the validation part "
        f"alone. All runs of a system have the values of its try of the lowest loss. The choice was "
        f"made once, so its own chance is not in the spread over seeds."
    )
    return {
        "Tuning": [Section("Every try", says, pd.DataFrame(rows).set_index("System"), notes=notes)]
    }


def sections(of: Comparison) -> list[Section]:
    """The report on one data set."""
    if not of.runs:
        return []
    found = [quality(of), other_scores(of), learning(of), generation(of), samples(of), pictures(of)]
    return [each for each in [*found, how_made(of)] if each is not None]


def _data_sets_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    firsts = [(each.dataset, each.first.name) for each in comparisons if each.first is not None]
    several = len({name for _, name in firsts}) > 1
    columns = {(d, TEST, name): f"{d}\n{name}" if several else d for d, name in firsts}
    columns |= {("mean", TEST, name): "Mean" for _, name in firsts}
    return scores_table(over_data_sets(comparisons), columns)


def write_report(folder: Path) -> Path:
    """Writes `report.html` of a comparison from its finished runs, and its tables as CSV.

    Args:
        folder: with `comparison.json`, of one data set or of several.

    Returns:
        The page.

    Raises:
        FolderError: a file of a run cannot be read.
    """
    comparisons, path = read_comparison(folder), folder / PAGE
    if len(comparisons) == 1:
        title, said, shown = comparisons[0].of.title, verdict(folder), sections(comparisons[0])
    else:
        benchmark = Benchmark.model_validate_json((folder / COMPARISON).read_bytes())
        title, said = benchmark.title, verdict(folder)
        table = _data_sets_table(comparisons)
        notes = _notes(comparisons[0], over_data_sets(comparisons))
        shown = [Section("Quality by data set", "", table, notes=notes)]
        shown += [
            Section(of.dataset, _verdict(of), more={f"The report of {of.dataset}": sections(of)})
            for of in comparisons
        ]
    write_page(path, title, said, shown)
    return path
