"""The report of a comparison: verdict, scores, learning, heads, outputs, and how it was made.

comparison = read_comparison(folder)  # once; all else is computed from it
write_report(folder, comparison)
comparison.scores                     # the DataFrame of all scores and differences
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from headwise.analysis.comparison import RANKING, Comparison, SystemRuns
from headwise.analysis.results import (
    EVEN_ENTROPY,
    TEST,
    ComparisonRecord,
    RunResult,
    decision_history,
    name_parts,
)
from headwise.analysis.speed import OverRounds
from headwise.analysis.statistics import SIGNIFICANT, p_value
from headwise.report.page import (
    NONE,
    Section,
    forest,
    format_count,
    format_interval,
    format_number,
    legend,
    line_style,
    shorten,
    subplots,
    write_page,
)
from headwise.runs.evaluate import read_outcome
from headwise.runs.folder import read_result
from headwise.runs.names import COMPARISON

PAGE = "report.html"
_SAMPLES = 6
_LOSS_DIGITS = 4
_shorten = partial(shorten, letters=22)  # of a name in a figure
_RUN_COLUMNS = {
    *("system", "seed", "parameters", "macs", "steps", "planned_steps", "seconds"),
    "validation_loss",
}


def read_comparison(folder: Path) -> Comparison:
    """Reads `comparison.json` of a folder, and the finished runs beside it.

    Raises:
        FolderError: a file of a finished run cannot be read.
    """
    about = ComparisonRecord.model_validate_json((folder / COMPARISON).read_bytes())
    runs: dict[str, list[RunResult]] = {name: [] for name in about.systems}
    outcomes: dict[str, list[Any]] = {name: [] for name in about.systems}
    lost = {}
    for name, system in about.runs.items():
        result = read_result(folder / name)
        if result is None:
            lost[name] = "not finished"
            continue
        runs[system].append(result)
        if result.diverged:
            lost[name] = "diverged"
        elif result.scores:
            if not math.isfinite(result.scores[0].value):  # a correlation of constant outputs
                lost[name] = f"{result.scores[0].name} undefined"
            tests = (TEST, *result.tests)
            outcomes[system].append({test: read_outcome(folder / name, test) for test in tests})
    systems = [SystemRuns(name, runs[name], outcomes[name]) for name in about.systems]
    return Comparison(about, systems, lost)


def write_report(folder: Path, comparison: Comparison | None = None) -> Path:
    """Writes `report.html` of a comparison into its folder, and its tables as CSV.

    Returns:
        The path of the page.

    Raises:
        FolderError: a file of a finished run cannot be read.
    """
    comparison = comparison or read_comparison(folder)
    makers = (
        *(quality_section, other_scores_section, learning_section, heads_section),
        *(samples_section, pictures_section, provenance_section),
    )
    sections = [make(comparison) for make in makers] if comparison.runs else []
    present = [section for section in sections if section is not None]
    write_page(folder / PAGE, comparison.about.title, verdict(comparison), present)
    return folder / PAGE


def results_table(comparison: Comparison) -> Table:
    """Makes the table of a comparison for a terminal."""
    left_out = ["Seeds", "MACs", "Time per token ↓", "Detectable"]
    shown = main_table(comparison).rename(index=_shorten, columns={"Parameters": "Params"})
    shown = shown.drop(columns=left_out, errors="ignore")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, caption_justify="left")
    table.title = Text(comparison.about.title, style="bold")
    table.caption = Text(" ".join(_notes(comparison)))
    for name, cells in shown.reset_index().items():
        # A part of a number would pass for the whole.
        width = max(len(line) for text in (name, *cells) for line in text.split("\n"))
        table.add_column(Text(name), min_width=width, justify="right" if table.columns else "left")
    for row in shown.itertuples():
        table.add_row(*map(Text, row))
    return table


def verdict(comparison: Comparison) -> str:
    """Says which system is best, by how much, and whether that may be chance; lost runs first."""
    ranking, baseline = _ranking(comparison), comparison.baseline
    lost = ", ".join(f"{run} ({reason})" for run, reason in comparison.lost.items())
    counts = f"{len(comparison.lost)} of {len(comparison.about.runs)}"
    text = f"{counts} runs are missing from means: {lost}.\n" if lost else ""
    # The sort is stable, so that of equals the baseline is first.
    lower = bool(ranking["lower_is_better"].any())
    ranked = ranking.dropna(subset="value").sort_values("value", ascending=lower, kind="stable")
    if ranked.empty:
        return f"{text}There is no result."
    best, *others = ranked.itertuples()
    value = format_number(best.value, best.digits)
    if others and ranked["value"].nunique() == 1:
        return (
            f"{text}No clear winner: all {len(ranked)} systems have the same {best.score}, {value}."
        )
    # The best is compared with the baseline; if that is the best, so is each other one.
    rivals: list[Any] = [best] if best.system != baseline else others
    is_compared = bool(others) and baseline in set(ranked["system"])
    if is_compared and not all(row.significant for row in rivals):
        text += "No clear winner. "
    interval = format_interval(best.low, best.high, best.digits, before=", 95% interval ")
    text += f"{best.system} has the best {best.score}: {value}{interval}. "
    if not is_compared:
        return f"{text}It is not compared: that takes scores of the baseline and of another system."
    rival = rivals[0]
    digits = _decimals(rival)
    difference = format_number(rival.difference, digits, sign=True)
    ends = (rival.diff_low, rival.diff_high, digits)
    interval = format_interval(*ends, before=", 95% interval ", sign=True)
    text += f"{rival.system} differs from the baseline {baseline} by {difference}{interval}: "
    if rival.diff_variance_source == "items":
        text += (
            "one seed cannot tell whether that is the chance of training, which the interval over "
            "test items leaves out; run at least three."
        )
    elif math.isnan(rival.corrected_p):
        text += f"no test can be made ({rival.diff_reason})."
    else:
        conclusion = "a significant difference" if rival.significant else "it may be chance"
        text += f"{conclusion} ({p_value(rival.corrected_p)})."
    if len(ranked) > 2:
        text += (
            f" As the best of {len(ranked)} systems was chosen for its score, its lead is probably "
            f"overstated."
        )
    return text


# --- tables -----------------------------------------------------------------------------------


def _ranking(comparison: Comparison) -> pd.DataFrame:
    """Returns the rows of the score that ranks the systems."""
    return comparison.scores[comparison.scores["family"] == RANKING]


def main_table(comparison: Comparison) -> pd.DataFrame:
    """Makes the table with the first score, its difference to the baseline, sizes and costs."""
    ranking = _ranking(comparison)
    rows: dict[str, dict[str, str]] = {system.name: {} for system in comparison.systems}
    for score in ranking.itertuples():
        row = rows[str(score.system)]
        row[_heading(score)] = _value_cell(score)
        if len(rows) > 1:
            row["Difference"] = _difference_cell(score)
        if ranking["detectable"].notna().any():
            row["Detectable"] = format_number(score.detectable, _decimals(score))
    for system in comparison.systems:
        rows[system.name] |= _size_and_cost_cells(comparison, system)
    return _system_table(rows)


def _size_and_cost_cells(comparison: Comparison, system: SystemRuns) -> dict[str, str]:
    lost = len(system.runs) - len(system.converged)
    row = {"Seeds": _join_lines(str(len(system.runs)), f"{lost} diverged" if lost else "")}
    if not system.runs:
        return row | {"Loss ↓": "not finished"}
    about, run = comparison.about, system.runs[0]
    losses = [run.validation_loss for run in system.converged]
    trained = run.trained_parameters
    return row | {
        "Parameters": _join_lines(
            format_count(run.parameters),
            "" if trained is None else f"{format_count(trained)} trained",
        ),
        "MACs": format_count(run.macs),
        "Step time ↓": _time_cell(about.step_times.get(system.name)),
        "Time per token ↓": _time_cell(about.decoding_times.get(system.name)),
        "Loss ↓": _mean_cell(losses, _LOSS_DIGITS) if losses else "diverged",
    }


def _system_table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index").fillna(NONE).rename_axis("System")


def _join_lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _heading(score: Any) -> str:
    """Writes the name of a score, and which way is better: BLEU ↑."""
    return f"{score.score} {'↓' if score.lower_is_better else '↑'}"


def _value_cell(score: Any) -> str:
    """Writes a mean over seeds, their deviation, and its interval or why there is none."""
    interval = format_interval(score.low, score.high, score.digits)
    finite, seeds = [value for value in score.of_seeds if math.isfinite(value)], len(score.of_seeds)
    mean = _mean_cell(finite, score.digits) if finite else NONE
    count = f"{len(finite)} of {seeds} seeds" if len(finite) < seeds else ""
    return _join_lines(mean, count, interval or score.reason)


def _difference_cell(score: Any) -> str:
    """Writes a difference, with a star if it is significant, and its interval and p."""
    if math.isnan(score.difference):
        return str(score.diff_reason) if isinstance(score.diff_reason, str) else "baseline"
    star, digits = " *" if score.significant else "", _decimals(score)
    return _join_lines(
        format_number(score.difference, digits, sign=True) + star,
        format_interval(score.diff_low, score.diff_high, digits, sign=True),
        p_value(score.corrected_p) if math.isfinite(score.corrected_p) else "",
        "no p: single seeds" if score.diff_variance_source == "items" else score.diff_reason,
    )


def _decimals(score: Any) -> int:
    """Adds decimals where a difference, or an end of a significant interval, would be zero."""
    ends = [score.diff_low, score.diff_high] if score.significant else []
    shown = [number for number in (score.difference, *ends) if number]
    enough = (n for n in range(score.digits, 9) if all(round(x, n) for x in shown))
    return next(enough, int(score.digits))


def _mean_cell(values: Sequence[float], digits: int) -> str:
    """Writes the mean over seeds, and their standard deviation."""
    spread = f"± {format_number(float(np.std(values, ddof=1)), digits)}" if values[1:] else ""
    return _join_lines(format_number(float(np.mean(values)), digits), spread)


def _time_cell(time: OverRounds | None) -> str:
    """Writes a median over rounds and its interval; the baseline's own time has none."""
    if time is None:
        return NONE
    interval = format_interval(time.low, time.high, 2) if time.low < time.high else ""
    return _join_lines(f"{format_number(time.value, 2)}×", interval)


def _notes(comparison: Comparison) -> list[str]:
    """Says how to read scores and differences."""
    items = comparison.about.item_name
    return [
        "↑: higher is better; ↓: lower is better. ±: the standard deviation over seeds. Runs that "
        "diverged are in no mean.",
        f"In brackets: 95% intervals over seeds and test {items} together, or over seeds alone "
        f"where a score is not made from {items}. Of a single seed they are over test {items} "
        f"alone: they say nothing of training's own chance, and another seed may reverse an order.",
        f"*: p < {SIGNIFICANT} against {comparison.baseline}, the baseline. p is corrected by "
        f"Holm's method over what is tested together: the first score; the first score on all "
        f"further test sets; all other scores. Intervals are not corrected.",
    ]


# --- quality ----------------------------------------------------------------------------------


def quality_section(comparison: Comparison) -> Section:
    """Makes the section with the main table; differences are drawn too."""
    about, lengths = comparison.about, comparison.runs[0].macs_lengths.items()
    descriptions = [
        f"{name}: {'; '.join(filter(None, [text, about.matched.get(name)]))}"
        for name, text in about.systems.items()
        if text or name in about.matched
    ]
    notes = [
        f"MACs: multiply-accumulates of one forward pass over "
        f"{' and '.join(f'{length:,} positions in the {stack}' for stack, length in lengths)}.",
        "Times are those over the baseline's: of a step, forward and backward, and of a generated "
        "token. They are medians of nine rounds in which all systems take turns, with as many "
        "threads as a run; in brackets is their 95% interval over rounds.",
        f"Loss: {about.loss_name}, of the final model on the validation part.",
        "Detectable: the true difference that about three of four such comparisons would find "
        "after Holm's correction; a dash if there is no test, or if no difference is that large. "
        "Where it is large, the lack of a star does not mean that systems are alike. Filled points "
        "in the figure are significant.",
    ]
    all_scores = comparison.scores.drop(columns="of_seeds").set_index("system")
    return Section(
        "Quality and cost",
        table=main_table(comparison),
        figures=_draw_differences(comparison),
        notes=[*_notes(comparison), *notes, *descriptions],
        more={"All scores (those of the CSV are not rounded)": all_scores},
    )


def _draw_differences(comparison: Comparison) -> list[Figure]:
    """Draws the differences of the first score to the baseline."""
    compared = _ranking(comparison).reset_index(drop=True).dropna(subset="difference")
    if compared.empty:
        return []
    colours = [line_style(int(number))["color"] for number in compared.index]
    columns = {"difference": "value", "diff_low": "low", "diff_high": "high"}
    table = compared[[*columns, "significant"]].rename(columns=columns)
    table.index = compared["system"].map(_shorten)
    heading = _heading(next(compared.itertuples()))
    return [forest(table, f"{heading}, difference to {_shorten(comparison.baseline)}", colours)]


def other_scores_section(comparison: Comparison) -> Section | None:
    """Makes the section on further scores and further test sets: a column each."""
    rows: dict[str, dict[str, str]] = {}
    for score in comparison.scores[comparison.scores["family"] != RANKING].itertuples():
        heading = _join_lines(str(score.test) if score.test != TEST else "", _heading(score))
        has_difference = math.isfinite(score.difference)
        difference = f"Δ {_difference_cell(score)}".replace("\n", " ") if has_difference else ""
        cell = _join_lines(_value_cell(score), difference)
        rows.setdefault(str(score.system), {})[heading] = cell
    text = "As above; Δ is the difference to the baseline, and a star marks it as significant."
    return Section("Other scores", text, _system_table(rows)) if rows else None


# --- learning ---------------------------------------------------------------------------------


def learning_section(comparison: Comparison) -> Section:
    """Makes the section on learning: curves of losses and of the figures of the task."""
    rows = [row for run in comparison.runs for row in run.history]
    names = dict.fromkeys(name for row in rows for name in row if not name_parts(name))
    special = {
        "eval_loss": f"validation loss, {comparison.about.loss_name}",
        "loss": "training loss",
    }
    titles = special | {n: n.replace("_", " ") for n in names if n not in ("step", *special)}
    text = (
        "Thin lines are the seeds. Strong lines are means over seeds, up to the step at which the "
        "first seed stopped; the table is of these means. Steps are counted to the first "
        "validation whose loss is down to the baseline's lowest. The training loss also holds what "
        "a recipe adds to it, such as label smoothing."
    )
    figures = [_draw_curves(comparison, name, title) for name, title in titles.items()]
    drawn = [figure for figure in figures if figure is not None]
    return Section("Learning", text, _loss_table(comparison), drawn)


def _mean_curve(runs: Sequence[RunResult], name: str) -> pd.Series:
    """Returns a figure of the history by step: the mean over runs, at the steps that all have."""
    curves = [
        pd.Series({r["step"]: r[name] for r in run.history if name in r}, dtype=float).dropna()
        for run in runs
    ]
    return pd.concat(curves or [pd.Series(dtype=float)], axis=1, join="inner").mean(axis=1)


def _draw_curves(comparison: Comparison, name: str, title: str) -> Figure | None:
    """Draws a figure of the history by step: a line for each system, a thin one for each seed."""
    figure, (plot,) = subplots(height=3.6)
    late_values: list[float] = []
    for number, system in enumerate(comparison.systems):
        runs, style = system.converged or system.runs, line_style(number)
        mean = _mean_curve(runs, name)
        if mean.empty:
            continue
        for run in runs if len(runs) > 1 else []:
            plot.plot(_mean_curve([run], name), color=style["color"], linewidth=0.8, alpha=0.6)
        label = _shorten(system.name) + ("" if system.converged else " (diverged)")
        plot.plot(mean, **style, markersize=5, markevery=max(1, len(mean) // 8), label=label)
        late_values += [*mean[mean.index[-1] / 10 :]]
    if not plot.lines:
        return None
    if name.endswith("loss") and np.isfinite(late_values).all():
        # The first tenth leaves through the top, so that late differences are seen.
        room = 0.05 * (max(late_values) - min(late_values)) or 0.1
        plot.set_ylim(min(late_values) - room, max(late_values) + room)
    plot.locator_params(axis="x", nbins=5)
    plot.set_xlabel("step")
    plot.set_ylabel(title)
    legend(figure)
    return figure


def _loss_table(comparison: Comparison) -> pd.DataFrame | None:
    """Makes a table of the lowest validation losses, and of when each system has the baseline's."""
    curves = {
        system.name: _mean_curve(system.converged, "eval_loss") for system in comparison.systems
    }
    target = curves[comparison.baseline].min()
    steps = f"Steps to {format_number(target, _LOSS_DIGITS)}"
    rows = {
        name: {
            "Lowest validation loss": format_number(losses.min(), _LOSS_DIGITS),
            steps: format_number(losses.index[losses <= target].min(), 0),
        }
        for name, losses in curves.items()
        if len(losses)
    }
    return _system_table(rows) if math.isfinite(target) else None


# --- heads ------------------------------------------------------------------------------------


def heads_section(comparison: Comparison) -> Section | None:
    """Makes the section on what the heads of each system did at the last validation."""
    rows = {}
    for system in comparison.systems:
        runs = system.converged or system.runs
        of_seeds = [_last_decisions(run) for run in runs]
        if not any(map(len, of_seeds)):
            continue
        last = pd.concat(of_seeds, keys=range(len(runs)), names=["seed"])
        figures = dict(iter(last.groupby("kind")))
        row = {"Decides on": ", ".join(dict.fromkeys(system.runs[0].units.values()))}
        if "share" in figures:
            # A unit of one seed has nothing to do with the unit of the same number of another.
            shares = figures["share"].groupby(["seed", "place"])["value"]
            for name, extreme in (("Busiest", "max"), ("Least busy", "min")):
                multiples = (shares.agg(extreme) * shares.size()).groupby("place").mean()
                row[name] = f"{format_number(multiples.agg(extreme), 2)}×"
        if EVEN_ENTROPY in figures:
            row["Entropy"] = format_number(figures[EVEN_ENTROPY]["value"].mean(), 2)
        if "explained" in figures:
            by_label = figures["explained"].groupby("line")["value"].mean()
            row["Explained best"] = f"{format_number(by_label.max(), 2)}\nby {by_label.idxmax()}"
        rows[system.name] = row
    text = (
        "Means over seeds at the last validation of each, on up to 32 sequences. Busiest: the "
        "largest share of a unit in the work of its layer, over an even share. Entropy of "
        "decisions, on average over layers: 1 is even, 0 is one unit alone. Explained: how much of "
        "the decisions a label explains (ε²), on average over layers. `headwise analyse RUN` shows "
        "each layer."
    )
    return Section("What the heads did", text, _system_table(rows)) if rows else None


def _last_decisions(run: RunResult) -> pd.DataFrame:
    """Returns what a run recorded of decisions at its last validation."""
    history = decision_history(run.history)
    return history[history["step"] == history["step"].max()]


# --- outputs ----------------------------------------------------------------------------------


def samples_section(comparison: Comparison) -> Section | None:
    """Makes the section on outputs: those of all systems side by side, first those that differ."""
    outputs: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}  # by the named texts given
    for system in comparison.systems:
        for sample in system.outcomes[0][TEST].samples if system.outcomes else []:
            outputs.setdefault(tuple(sample.given.items()), {})[system.name] = sample.made
    ordered = sorted(outputs.items(), key=lambda item: len(set(item[1].values())) == 1)
    rows = [
        (str(number), name, text)
        for number, (given, by_system) in enumerate(ordered[:_SAMPLES], 1)
        for name, text in (*given, *by_system.items())
    ]
    table = pd.DataFrame(rows, columns=["Number", "Of", "Text"]).set_index(["Number", "Of"])
    text = "From the test part, which no system was trained on, with the first seed of each."
    return Section("Samples", text, table) if rows else None


def pictures_section(comparison: Comparison) -> Section | None:
    """Makes the section on pictures: those of all systems side by side."""
    outcomes = [(each.name, each.outcomes[0][TEST]) for each in comparison.systems if each.outcomes]
    shown = [(name, outcome.picture) for name, outcome in outcomes if outcome.picture]
    text = "Images of the data, and below them images by the first seed of each system."
    return Section("Pictures", text, pictures=shown) if shown else None


# --- how it was made --------------------------------------------------------------------------


def provenance_section(comparison: Comparison) -> Section:
    """Makes the section on data, tuning, runs, command, recipe, versions and machine."""
    about = comparison.about
    runs = [
        run.model_dump(include=_RUN_COLUMNS) | {score.name: score.value for score in run.scores}
        for run in comparison.runs
    ]
    score_notes = [f"{s.name}: {s.note}" for run in comparison.runs for s in run.scores if s.note]
    versions = [f"{name} {version}" for name, version in about.versions.items()]
    more: Any = {
        "Command": about.command,
        "Recipe": about.recipe,
        "Every run": pd.DataFrame(runs).set_index("system"),
        "Versions, machine, and how scores are counted": "\n".join(
            [*versions, about.machine, *dict.fromkeys(score_notes)]
        ),
    }
    trials = [
        {"system": system}
        | {key: str(value) for key, value in trial.values.items()}
        | {**trial.model_dump(include=_RUN_COLUMNS), "chosen": number == tuning.chosen}
        for system, tuning in about.tuning.items()
        for number, trial in enumerate(tuning.trials)
    ]
    notes = []
    if trials:
        more["Tuning"] = pd.DataFrame(trials).set_index("system")
        seed = next(iter(about.tuning.values())).seed
        notes = [
            f"Tuning: a trial trained a system with one combination of values and with seed "
            f"{seed}, which no run has. The one of the lowest loss on the validation part was "
            f"chosen, once for all seeds: the chance of this choice is not in the spread over "
            f"seeds.",
            *(f"{name}: {note}" for name, tuning in about.tuning.items() for note in tuning.notes),
        ]
    facts = pd.DataFrame.from_dict(about.facts, orient="index").rename_axis("part")
    table = facts if len(facts) else None
    return Section("How it was made", table=table, more=more, notes=notes)
