"""The report of a comparison: its verdict, scores, learning and outputs, and how it was made."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from headwise.analysis.results import RunResult, parts_of
from headwise.analysis.speed import OverRounds
from headwise.analysis.statistics import SIGNIFICANT, Estimate, p_value
from headwise.report.findings import where
from headwise.report.page import NONE, Section, axes, legend, look, number, short, write_page
from headwise.report.scores import (
    FOUND,
    Cell,
    Comparison,
    System,
    frame,
    on_one,
    over_data_sets,
    read_comparison,
    results,
    verdict,
    verdict_of,
)
from headwise.runs.evaluate import TEST

__all__ = ["PAGE", "read_comparison", "results", "results_table", "verdict", "write_report"]

PAGE = "report.html"
_SAMPLES, _PICTURES = 12, 6  # shown at once
_LETTERS = 22  # of a name in a figure
# What is recorded of each unit.
_OF_UNITS = {"share": "share", "kappa": "κ", "alpha": "α"}
# What is recorded in training beside the figures that a task measures.
_LOGGED = ("step", "epoch", "loss", "eval_loss", "seconds", "learning_rate")


def write_report(folder: Path) -> Path:
    """Writes `report.html` of a comparison from its finished runs, and its tables as CSV.

    Args:
        folder: with `comparison.json`, of one data set or of several.

    Returns:
        The page.

    Raises:
        FolderError: a file of a finished run cannot be read.
    """
    comparisons, path = read_comparison(folder), folder / PAGE
    first = comparisons[0]
    if len(comparisons) == 1:
        shown = sections(first)
    else:
        table = data_sets_table(comparisons)
        shown = [Section("Quality by data set", "", table, notes=_notes(first))]
        for of in comparisons:
            more: Any = {f"The report of {of.dataset}": sections(of)}
            shown.append(Section(of.dataset, on_one(of), more=more))
    write_page(path, first.title, verdict_of(comparisons), shown)
    return path


def sections(of: Comparison) -> list[Section]:
    """Makes the sections of the report on one data set."""
    if not of.runs:
        return []
    makers = (quality, other_scores, learning, heads, generation, samples, pictures, how_made)
    return [section for make in makers if (section := make(of)) is not None]


def results_table(folder: Path) -> Table:
    """Makes the table of a comparison for a terminal."""
    comparisons = read_comparison(folder)
    first = comparisons[0]
    if len(comparisons) > 1:
        shown = data_sets_table(comparisons)
    else:
        names = {"Parameters": "Params", "Time per step": "Time", "Validation loss": "Loss"}
        shown = main_table(first).rename(columns=names)
        shown = shown.drop(columns=["Seeds", "MACs", "Detectable", "About"], errors="ignore")
        tests = scores_table([cell for cell in first.cells if cell.test != TEST])
        shown = shown.join(tests.map(lambda cell: cell.partition("\n")[0]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, caption_justify="left")
    table.title = Text(first.title, style="bold")
    table.caption = Text(" ".join(_notes(first)))
    for name, cells in shown.rename(index=shortened).reset_index().items():
        # The part of a number would pass for the whole.
        width = max(len(line) for text in (name, *cells) for line in text.split("\n"))
        left = name == "System"
        table.add_column(Text(name), justify="left" if left else "right", min_width=width)
    for name, row in shown.iterrows():
        table.add_row(Text(shortened(str(name)), style="bold"), *map(Text, row))
    return table


# --- tables -----------------------------------------------------------------------------------


def _table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Makes a table with a row for each system."""
    return pd.DataFrame.from_dict(rows, orient="index").fillna(NONE).rename_axis("System")


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _interval(found: Estimate, digits: int, *, sign: bool = False) -> str:
    low, high = (number(end, digits, sign=sign) for end in (found.low, found.high))
    return f"[{low}, {high}]" if math.isfinite(found.low) else ""


def _over_seeds(values: Sequence[float] | np.ndarray, digits: int) -> str:
    """Writes the mean over seeds, and their standard deviation."""
    spread = f"± {number(pd.Series(values).std(), digits)}" if len(values) > 1 else ""
    return _lines(number(float(np.mean(values)), digits), spread)


def _value(cell: Cell) -> str:
    """Writes a mean over seeds, their deviation, and its interval or why there is none."""
    mean, digits = cell.mean, cell.score.digits
    # A mean over data sets has no seeds.
    shown = _over_seeds(cell.values, digits) if len(cell.values) else number(mean.value, digits)
    return _lines(shown, _interval(mean, digits) or mean.why)


def _difference(cell: Cell) -> str:
    """Writes a difference, with a star if it is significant, and its interval and p."""
    found, digits = cell.difference, cell.score.digits
    if math.isnan(found.value):
        return found.why
    star = " *" if found.significant else ""
    tested = p_value(found.corrected_p) if "seeds" in found.over else ""
    without = "no p: single seeds" if found.over == "items" else found.why
    return _lines(
        number(found.value, digits, sign=True) + star,
        _interval(found, digits, sign=True),
        tested,
        without,
    )


def _over_rounds(found: OverRounds | None, digits: int = 2, unit: str = "×") -> str:
    """Writes a median over rounds and its interval; the baseline's own time has none."""
    if found is None:
        return NONE
    low, value, high = (number(x, digits) for x in (found.low, found.value, found.high))
    return _lines(f"{value}{unit}", f"{low}–{high}" if found.low < found.high else "")


def main_table(of: Comparison) -> pd.DataFrame:
    """Makes the main table: size, cost, loss, first score, and its difference to the baseline."""
    ranking = {cell.system: cell for cell in of.ranking}
    rows = {}
    for system in of.systems:
        row = _size_and_loss(of, system)
        if (cell := ranking.get(system.name)) is not None:
            has_score = math.isfinite(cell.mean.value)
            row[_heading(cell)] = _value(cell) if has_score else row["Validation loss"]
            if len(of.systems) > 1:
                row["Difference"] = _difference(cell)
                row["Detectable"] = number(cell.difference.detectable, cell.score.digits)
        about = (of.compared.systems[system.name], of.compared.matched.get(system.name, ""))
        rows[system.name] = row | {"About": "; ".join(filter(None, about))}
    table = _table(rows)
    # A column that says nothing of any system is left out.
    return table[[name for name in table if (~table[name].isin(["", NONE])).any()]]


def _size_and_loss(of: Comparison, system: System) -> dict[str, str]:
    lost = len(system.runs) - len(system.sound)
    row = {"Seeds": _lines(str(len(system.runs)), f"{lost} diverged" if lost else "")}
    if not system.runs:
        return row | {"Validation loss": "not finished"}
    run, losses = system.runs[0], [run.validation_loss for run in system.sound]
    row["Parameters"] = short(run.parameters)
    if any(run.trained_parameters is not None for run in of.runs):
        trained = run.trained_parameters
        row["Trained parameters"] = short(run.parameters if trained is None else trained)
    return row | {
        "MACs": short(run.macs),
        "Time per step": _over_rounds(of.compared.step_times.get(system.name)),
        "Validation loss": _over_seeds(losses, _loss_digits(of)) if losses else "diverged",
    }


def _loss_digits(of: Comparison) -> int:
    """Chooses the decimals of the loss: three, or more if it is small."""
    losses = [abs(run.validation_loss) for run in of.runs if not run.diverged]
    least = min(filter(None, losses), default=1.0)
    return min(8, max(3, 2 - math.floor(math.log10(least))))


def scores_table(cells: Sequence[Cell]) -> pd.DataFrame:
    """Makes a table of scores: a row for each system, and a column for each score."""
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        first, *rest = _value(cell).split("\n")
        if math.isfinite(cell.difference.value):
            first += " *" if cell.difference.significant else ""
            rest.append("Δ " + _difference(cell).replace(" *", "").replace("\n", " "))
        of = cell.dataset or (cell.test if cell.test != TEST else "")
        rows.setdefault(cell.system, {})[_lines(of, _heading(cell))] = _lines(first, *rest)
    return _table(rows)


def data_sets_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Makes the table of the first score on each data set, and of its mean over them."""
    return scores_table(over_data_sets(comparisons))


def _notes(of: Comparison) -> list[str]:
    """Says how to read scores and differences."""
    items = of.compared.item_name
    return [
        "↑: higher is better; ↓: lower is better. ±: the standard deviation over seeds. Runs that "
        "diverged are in no mean.",
        f"In brackets: 95% intervals over seeds and test {items} together, or over seeds alone "
        f"where a score is not made from {items}. Of a single seed they are over test {items} "
        f"alone: they say nothing of training's own chance, and another seed may reverse an order.",
        f"*: p < {SIGNIFICANT} against {of.baseline}, the baseline. p is corrected by Holm's "
        f"method over what is tested together: the first score, on all data sets; the first score "
        f"on all further test sets; all other scores. Intervals are not corrected.",
    ]


# --- quality ----------------------------------------------------------------------------------


def quality(of: Comparison) -> Section:
    """Makes the section with the main table; scores and differences are drawn too."""
    table, lengths = main_table(of), of.runs[0].macs_lengths
    over = " and ".join(f"{length:,} positions in the {stack}" for stack, length in lengths.items())
    of_columns = {
        "MACs": f"multiply-accumulates of one forward pass over {over}.",
        "Time per step": "forward and backward, over the baseline's; the median of rounds in which "
        "all systems take turns, with its 95% interval.",
        "Validation loss": f"{of.compared.loss_name}, of the final model.",
        "Detectable": f"the true difference that {FOUND} would find. Where it is large, the lack "
        f"of a star does not mean that systems are alike.",
    }
    notes = [f"{name}: {text}" for name, text in of_columns.items() if name in table]
    drawn = [dots(of, differences=True), dots(of, differences=False)] if len(of.systems) > 1 else []
    figures = [figure for figure in drawn if figure is not None]
    return Section("Quality and cost", "", table, figures, notes=[*_notes(of), *notes])


def dots(of: Comparison, *, differences: bool) -> Figure | None:
    """Draws the first score of each system, or its difference to the baseline, with intervals."""
    rows = [
        (look(at), cell, found)
        for at, cell in enumerate(of.ranking)
        if math.isfinite((found := cell.difference if differences else cell.mean).value)
    ]
    if not rows:
        return None
    figure, (plot,) = axes(height=0.9 + 0.36 * len(rows))
    if differences:
        plot.axvline(0, color="#777777", linewidth=1.2)
    for row, (style, cell, found) in enumerate(rows):
        colour, marker = style["color"], style["marker"]
        plot.plot([found.low, found.high], [row, row], color=colour, marker="|", linewidth=2)
        fill = colour if found.significant or not differences else "white"
        plot.plot(found.value, row, marker, color=colour, markerfacecolor=fill, markersize=8)
        if not differences and len(cell.values) > 1:  # the seeds, below the interval
            below = [row + 0.25] * len(cell.values)
            plot.plot(cell.values, below, marker, color=colour, alpha=0.5, markersize=4)
    plot.set_yticks(range(len(rows)), [shortened(cell.system) for _, cell, _ in rows])
    plot.set_ylim(len(rows) - 0.5, -0.5)
    plot.grid(visible=False, axis="y")
    plot.locator_params(axis="x", nbins=6)
    name = _heading(of.ranking[0])
    plot.set_xlabel(f"{name}, difference to {shortened(of.baseline)}" if differences else name)
    return figure


def shortened(name: str) -> str:
    """Leaves out the middle of a long name, since similar names differ at the end."""
    half = (_LETTERS - 1) // 2
    return name if len(name) <= _LETTERS else f"{name[:half]}…{name[-half:]}"


def _heading(cell: Cell) -> str:
    """Writes the name of a score, and which way is better: BLEU ↑."""
    return f"{capitalised(cell.score.name)} {'↓' if cell.score.lower_is_better else '↑'}"


def capitalised(name: str) -> str:
    """Writes a name as a title; one with capitals stays: BLEU, chrF.

    >>> capitalised("accuracy"), capitalised("chrF"), capitalised("half_share")
    ('Accuracy', 'chrF', 'Half share')
    """
    words = name.replace("_", " ")
    return words.capitalize() if words.islower() else words


def other_scores(of: Comparison) -> Section | None:
    """Makes the section on further scores and further test sets: a column each."""
    cells = of.cells[len(of.systems) :]
    if not cells:
        return None
    says = "As above; Δ is the difference to the baseline, and a star marks it as significant."
    return Section("Other scores", says, scores_table(cells))


# --- learning ---------------------------------------------------------------------------------


def learning(of: Comparison) -> Section:
    """Makes the section on learning: losses, how soon they are reached, and the task's figures."""
    names = dict.fromkeys(key for run in of.runs for record in run.history for key in record)
    places = {place for run in of.runs for place in run.units}
    measured = [n for n in names if n not in _LOGGED and parts_of(n)[1] not in places]
    figures = [
        over_steps(of, "eval_loss", f"Loss, {of.compared.loss_name}", pale="loss"),
        loss_over_loss(of),
        *(over_steps(of, name, capitalised(name)) for name in measured),
    ]
    says = (
        "Strong lines are the loss on the validation part, means over seeds; thin lines are the "
        "seeds. Pale lines are the loss in training, which also holds what a recipe adds to it, "
        "such as label smoothing."
    )
    note = (
        "Steps: until the validation loss is down to the mean of the baseline's lowest, on "
        "straight lines between validations. Of validation against training loss, the lower line "
        "generalises better for what it has fitted (Ahmed et al. 2017, figure 2)."
    )
    shown = [figure for figure in figures if figure is not None]
    return Section("Learning", says, how_soon(of), shown, notes=[note])


def curve(run: RunResult, name: str) -> pd.Series:
    """Returns the finite values of one figure of the history, by step."""
    found = {r["step"]: r[name] for r in run.history if math.isfinite(r.get(name, math.nan))}
    return pd.Series(found, pd.Index(found, dtype=float), dtype=float)


def _mean_curve(system: System, name: str) -> pd.Series:
    """Averages a figure over seeds, at those steps that all of them have: else it would jump."""
    curves = [curve(run, name) for run in system.sound or system.runs]
    return pd.concat(curves, axis=1, join="inner").mean(axis=1)


def over_steps(of: Comparison, name: str, title: str, *, pale: str = "") -> Figure | None:
    """Draws a recorded figure: a line for each system, and a thin one for each seed."""
    figure, (plot,) = axes(height=3.6)
    late = []
    for at, system in enumerate(of.systems):
        if not system.runs or (mean := _mean_curve(system, name)).empty:
            continue
        style = look(at)
        color, line = style["color"], style["linestyle"]
        if pale:
            training = _mean_curve(system, pale)
            plot.plot(training, color=color, linewidth=1.2, alpha=0.4)
        for run in system.runs if len(system.runs) > 1 else []:
            plot.plot(curve(run, name), color=color, linestyle=line, linewidth=0.8, alpha=0.6)
        label = shortened(system.name) + ("" if system.sound else " (diverged)")
        every = max(1, len(mean) // 8)
        plot.plot(mean, **style, linewidth=2, markersize=5, markevery=every, label=label)
        if pale and system.sound:
            late += [*mean[mean.index[-1] / 10 :], *training[mean.index[-1] / 10 :]]
    if not plot.lines:
        return None
    if late:
        # The first tenth, and a run that explodes, leave through the top.
        room = 0.05 * (max(late) - min(late)) or 0.1
        plot.set_ylim(min(late) - room, max(late) + room)
    plot.locator_params(axis="x", nbins=5)
    plot.set_xlabel("Step")
    plot.set_ylabel(title)
    legend(figure)
    return figure


def loss_over_loss(of: Comparison) -> Figure | None:
    """Draws validation loss against training loss, as figure 2 of Ahmed et al. 2017."""
    figure, (plot,) = axes(height=3.6)
    for at, system in enumerate(of.systems):
        for number_of_run, run in enumerate(system.sound):
            # A single record of the training loss is noisy.
            fitted = curve(run, "loss").rolling(5, center=True, min_periods=1).mean()
            reached = curve(run, "eval_loss")
            if len(fitted) > 1 and len(reached) > 1:
                style: dict[str, Any] = look(at) | {"linewidth": 1.6, "markersize": 4}
                style |= {"label": shortened(system.name), "markevery": max(1, len(reached) // 8)}
                if number_of_run:
                    style |= {"marker": "", "linewidth": 0.8, "label": None}
                plot.plot(np.interp(reached.index, fitted.index, fitted), reached, **style)
    if not plot.lines:
        return None
    plot.invert_xaxis()
    plot.set_xlabel("Training loss")
    plot.set_ylabel("Validation loss at the same step")
    legend(figure)
    return figure


def how_soon(of: Comparison) -> pd.DataFrame | None:
    """Makes a table of the lowest validation losses, and of when each system has the baseline's."""
    curves = {
        system.name: [c for run in system.sound if len(c := curve(run, "eval_loss"))]
        for system in of.systems
    }
    if not curves[of.baseline]:
        return None
    target, digits = float(np.mean([c.min() for c in curves[of.baseline]])), _loss_digits(of)
    rows = {}
    for name, own in curves.items():
        steps = [step for each in own if (step := first_step(each, target)) is not None]
        if own:
            rows[name] = {
                "Lowest validation loss": _over_seeds([c.min() for c in own], digits),
                "At step": number(float(np.mean([c.idxmin() for c in own])), 0),
                f"Steps to {number(target, digits)}": _over_seeds(steps, 0) if steps else "never",
                "Seeds that reach it": f"{len(steps)} of {len(own)}",
            }
    return _table(rows)


def first_step(losses: pd.Series, target: float) -> float | None:
    """Finds the step at which a loss first reaches a target, on straight lines between values.

    >>> first_step(pd.Series({100: 4.0, 200: 2.0}), 2.5), first_step(pd.Series({100: 4.0}), 2.5)
    (175.0, None)
    """
    below = np.flatnonzero(losses.to_numpy() <= target)
    if not len(below):
        return None
    part = losses.iloc[max(0, below[0] - 1) : below[0] + 1]
    return float(np.interp(-target, -part.to_numpy(), part.index))


# --- what the heads do, speed, outputs --------------------------------------------------------


def heads(of: Comparison) -> Section | None:
    """Makes the section on what systems decide at the end of training."""
    # Which expert has which number is chance, so that seeds have no mean.
    firsts = {system.name: system.sound[0] for system in of.systems if system.sound}
    found = pd.DataFrame([row for run in firsts.values() for row in _decided(run)])
    if found.empty:
        return None
    every = found.pivot_table("value", ["System", "Place"], "figure", "max", sort=False)
    ranges = every.groupby("System", sort=False).agg(["min", "max"])
    summary = {
        system: {
            figure: " to ".join(dict.fromkeys(number(end, 2) for end in row[figure]))
            for figure in every
        }
        for system, row in ranges.iterrows()
    }
    says = (
        "At the end of training, on a few sequences of the validation part, with the first seed; "
        "of several places the smallest and the largest number. Entropy is 1 where all have the "
        "same weight, and what a label explains (ε²) is 1 where it decides everything. "
        "The page of headwise analyse draws how they changed in training."
    )
    return Section("What the heads do", says, _table(summary), more={"Every place": every})


def _decided(run: RunResult) -> Iterator[dict[str, Any]]:
    """Yields the last recorded figures of each system of a run; see `RunResult.history`."""
    last = {name: value for record in run.history for name, value in record.items()}
    for name, value in last.items():
        kind, place, of = parts_of(name)
        if place not in run.units or not math.isfinite(value):
            continue
        row = {"System": run.system, "Place": where(place), "value": value}
        if kind == "entropy" and (even := last[f"even entropy {place}"]):
            yield row | {"figure": "Entropy", "value": value / even}
        elif kind == "explained":
            yield row | {"figure": f"Explained by {of}"}
        elif kind in _OF_UNITS:
            yield row | {"figure": f"Largest {_OF_UNITS[kind]}"}


def generation(of: Comparison) -> Section | None:
    """Makes the section on how fast systems generate."""
    times, speeds = of.compared.decoding_times, of.compared.decoding_speeds
    if not speeds:
        return None
    rows = {
        system.name: {
            "Time per token": _over_rounds(times.get(system.name)),
            "Tokens per second": _over_rounds(speeds.get(system.name), 0, ""),
        }
        for system in of.systems
    }
    says = (
        "All systems write the same number of tokens behind the same ones, always the most "
        "probable, with the model of the first seed. The median of rounds in which they take "
        "turns, with its 95% interval; the time is that over the baseline's."
    )
    return Section("Speed of generation", says, _table(rows))


def samples(of: Comparison) -> Section | None:
    """Makes the section on outputs: those of all systems side by side, first those that differ."""
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for system in of.systems:
        for sample in system.outcomes[0][TEST].samples if system.outcomes else []:
            found.setdefault(tuple(sample.given.items()), {})[system.name] = sample.made
    if not found:
        return None
    ordered = sorted(found.items(), key=lambda item: len(set(item[1].values())) == 1)[:_SAMPLES]
    rows = []
    for at, (given, made) in enumerate(ordered, 1):
        # All but the first, which is what a system sees, is what it is to find.
        expected = {text: f"✓ as the {label.lower()}" for label, text in given[1:]}
        rows += [(at, label, text, "") for label, text in given]
        rows += [(at, name, text, expected.get(text, "")) for name, text in made.items()]
    table = pd.DataFrame(rows, columns=["", "Of", "Text", "Right"]).set_index(["", "Of"])
    says = "From the test part, which no system was trained on, with the first seed of each."
    return Section("Samples", says, table if table["Right"].any() else table[["Text"]])


def pictures(of: Comparison) -> Section | None:
    """Makes the section on pictures: those of all systems side by side; equal ones stand once."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for system in of.systems:
        times: Counter[str] = Counter()
        for each in system.outcomes[0][TEST].pictures if system.outcomes else []:
            times[each.title] += 1
            title = f"{each.title} ({n})" if (n := times[each.title]) > 1 else each.title
            views = found.setdefault(title, {})
            views.setdefault((each.png, each.caption), []).append(system.name)
    if not found:
        return None
    with_pictures = len([system for system in of.systems if system.outcomes])
    shown: list[dict[str, str]] = [{}, {}]
    for at, (title, views) in enumerate(found.items()):
        for (png, caption), names in views.items():
            who = "all systems" if 1 < with_pictures == len(names) else ", ".join(names)
            shown[at >= _PICTURES][_lines(title, who, " ".join(caption.split()))] = png
    more: Any = {}
    if shown[1]:
        more = {f"{len(found) - _PICTURES} more": [Section("", pictures=shown[1])]}
    return Section("Pictures", "Of the first seed of each system.", pictures=shown[0], more=more)


# --- how it was made --------------------------------------------------------------------------


def how_made(of: Comparison) -> Section:
    """Makes the section on data, runs, tuning, command, recipe, versions and machine."""
    compared = of.compared
    runs = [
        {
            "System": run.system,
            "Seed": str(run.seed),
            "Parameters": run.parameters,
            "MACs": run.macs,
            "Steps": run.steps,
            "Planned": run.early_stop.planned_steps if run.early_stop else run.steps,
            "Seconds": round(run.seconds),
            "Validation loss": _loss(run),
            **{score.name: number(score.value, score.digits + 1) for score in run.scores},
        }
        for run in of.runs
    ]
    facts = {
        part: {
            capitalised(name): number(x, 0) if isinstance(x, int) else x for name, x in own.items()
        }
        for part, own in compared.facts.items()
    }
    notes = dict.fromkeys(f"{s.name}: {s.note}" for run in of.runs for s in run.scores if s.note)
    versions = [f"{name} {version}" for name, version in compared.versions.items()]
    more: Any = {"Command": compared.command, "Recipe": compared.recipe}
    more["Every run"] = pd.DataFrame(runs).set_index("System").fillna(NONE)
    if of.cells:
        scores = frame(of.cells).drop(columns="dataset").set_index(["test", "score", "system"])
        more["Scores, not rounded"] = scores
    more |= tuning(of)
    more["Versions, machine, and how scores are counted"] = "\n".join(
        [*versions, compared.machine, *notes]
    )
    table = _table(facts).rename_axis("Part") if facts else None
    return Section("How it was made", "", table, more=more)


def _loss(run: Any) -> str:
    return "diverged" if run.diverged else f"{run.validation_loss:#.5g}".replace("-", "−")


def tuning(of: Comparison) -> dict[str, list[Section]]:
    """Makes the table of the values that each system tried, and of its choice."""
    tuned = of.compared.tuning
    rows = [
        {
            "System": system,
            **{key: str(value) for key, value in each.values.items()},
            "Steps": each.steps,
            "Seconds": round(each.seconds),
            "Validation loss": _loss(each),
            "Chosen": "chosen" if at == tries.chosen else "",
        }
        for system, tries in tuned.items()
        for at, each in enumerate(tries.tries)
    ]
    if not rows:
        return {}
    says = (
        f"A try trained a system with one combination of values and with seed "
        f"{next(iter(tuned.values())).seed}, which no run has. The one of the lowest loss on the "
        f"validation part was chosen, once for all seeds: the chance of this choice is not in the "
        f"spread over seeds."
    )
    notes = [f"{system}: {note}" for system, tries in tuned.items() for note in tries.notes]
    table = pd.DataFrame(rows).fillna("").set_index("System")
    return {"Tuning": [Section("", says, table, notes=notes)]}
