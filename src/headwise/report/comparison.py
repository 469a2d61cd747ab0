"""The report of a comparison: its verdict, scores, learning and outputs, and how it was made."""

import math
from collections.abc import Mapping, Sequence
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
from headwise.analysis.statistics import SIGNIFICANT, p_value
from headwise.report.page import (
    NONE,
    Section,
    axes,
    interval,
    legend,
    look,
    number,
    short,
    write_page,
)
from headwise.report.scores import (
    RANKING,
    Comparison,
    System,
    read_comparison,
    results,
    scores_of,
    verdict,
    verdict_of,
)
from headwise.runs.evaluate import TEST

__all__ = ["PAGE", "results", "results_table", "verdict", "write_report"]

PAGE = "report.html"
_SAMPLES = 6
_LETTERS = 22  # of a name in a figure
# What is recorded in training beside the figures that a task measures.
_LOGGED = ("step", "epoch", "loss", "eval_loss", "seconds", "learning_rate")
_OF_RUNS = {
    *("system", "seed", "parameters", "macs", "steps", "planned_steps", "seconds"),
    "validation_loss",
}


def write_report(folder: Path) -> Path:
    """Writes `report.html` of a comparison from its finished runs, and its tables as CSV.

    Args:
        folder: with `comparison.json`, of one data set or of several.

    Returns:
        The page.

    Raises:
        FolderError: a file of a finished run cannot be read.
    """
    comparisons = read_comparison(folder)
    table, first = scores_of(comparisons), comparisons[0]
    if len(comparisons) == 1:
        shown = sections(first, table)
    else:
        top = top_table(comparisons, table)
        shown = [Section("Quality by data set", table=top, notes=_notes(first))]
        for of in comparisons:
            own = sections(of, table[table["dataset"] == of.dataset])
            more: Any = {f"The report of {of.dataset}": own}
            shown.append(Section(of.dataset, verdict_of([of], table), more=more))
    write_page(folder / PAGE, first.title, verdict_of(comparisons, table), shown)
    return folder / PAGE


def sections(of: Comparison, table: pd.DataFrame) -> list[Section]:
    """Makes the sections of the report on one data set, whose scores are a table of `results`."""
    if not of.runs:
        return []
    makers = (learning, samples, pictures, how_made)
    made = [quality(of, table), other_scores(table), *(make(of) for make in makers)]
    return [section for section in made if section is not None]


def results_table(folder: Path) -> Table:
    """Makes the table of a comparison for a terminal."""
    comparisons = read_comparison(folder)
    shown = top_table(comparisons, scores_of(comparisons)).rename(index=shortened)
    left_out = ["Seeds", "MACs", "Time per token ↓", "Detectable"]
    shown = shown.drop(columns=left_out, errors="ignore").rename(columns={"Parameters": "Params"})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, caption_justify="left")
    table.title = Text(comparisons[0].title, style="bold")
    table.caption = Text(" ".join(_notes(comparisons[0])))
    for name, cells in shown.reset_index().items():
        # The part of a number would pass for the whole.
        width = max(len(line) for text in (name, *cells) for line in text.split("\n"))
        side: Any = "right" if table.columns else "left"
        table.add_column(Text(name), min_width=width, justify=side)
    for row in shown.itertuples():
        table.add_row(*map(Text, row))
    return table


# --- tables -----------------------------------------------------------------------------------


def top_table(comparisons: Sequence[Comparison], table: pd.DataFrame) -> pd.DataFrame:
    """Makes the table that page and terminal begin with.

    Of one data set it has the first score, its difference to the baseline, sizes, costs and losses;
    of several it has the first score on each of them, and its mean.
    """
    ranking = table[table["family"] == RANKING]
    if len(comparisons) > 1:
        return scores_table(ranking)
    (of,) = comparisons
    rows: dict[str, dict[str, str]] = {system.name: {} for system in of.systems}
    for score in ranking.itertuples():
        row = rows[score.system]
        row[_heading(score)] = _value(score)
        if len(of.systems) > 1:
            row["Difference"] = _difference(score)
        if ranking["detectable"].notna().any():
            row["Detectable"] = number(score.detectable, score.digits)
    for system in of.systems:
        rows[system.name] |= _size_and_loss(of, system)
    return _table(rows)


def _size_and_loss(of: Comparison, system: System) -> dict[str, str]:
    lost = len(system.runs) - len(system.sound)
    row = {"Seeds": _lines(str(len(system.runs)), f"{lost} diverged" if lost else "")}
    if not system.runs:
        return row | {"Loss ↓": "not finished"}
    run, losses = system.runs[0], [run.validation_loss for run in system.sound]
    trained = run.trained_parameters
    speed = of.compared.decoding_speeds.get(system.name)
    return row | {
        "Parameters": _lines(short(run.parameters), f"{short(trained)} trained" if trained else ""),
        "MACs": short(run.macs),
        "Step time ↓": _over_rounds(of.compared.step_times.get(system.name)),
        "Time per token ↓": _lines(
            _over_rounds(of.compared.decoding_times.get(system.name)),
            f"{number(speed.value, 0)} tokens/s" if speed else "",
        ),
        "Loss ↓": _over_seeds(losses, _loss_digits(of)) if losses else "diverged",
    }


def scores_table(table: pd.DataFrame) -> pd.DataFrame:
    """Makes a table of scores: a row for each system, and a column for each score."""
    rows: dict[str, dict[str, str]] = {}
    for score in table.itertuples():
        of = score.dataset or (score.test if score.test != TEST else "")
        has_difference = math.isfinite(score.difference)
        apart = f"Δ {_difference(score)}".replace("\n", " ") if has_difference else ""
        cell = _lines(_value(score), apart)
        rows.setdefault(score.system, {})[_lines(of, _heading(score))] = cell
    return _table(rows)


def _table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index").fillna(NONE).rename_axis("System")


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _heading(score: Any) -> str:
    """Writes the name of a score, and which way is better: BLEU ↑."""
    return f"{score.score} {'↓' if score.lower_is_better else '↑'}"


def _value(score: Any) -> str:
    """Writes a mean over seeds, their deviation, and its interval or why there is none."""
    shown = number(score.value, score.digits)
    if score.of_seeds:  # a mean over data sets has none
        shown = _over_seeds(score.of_seeds, score.digits)
    return _lines(shown, interval(score.low, score.high, score.digits) or score.why)


def _difference(score: Any) -> str:
    """Writes a difference, with a star if it is significant, and its interval and p."""
    if math.isnan(score.difference):
        return str(score.diff_why)
    star = " *" if score.significant else ""
    return _lines(
        number(score.difference, score.digits, sign=True) + star,
        interval(score.diff_low, score.diff_high, score.digits, sign=True),
        p_value(score.corrected_p) if "seeds" in score.diff_over else "",
        "no p: single seeds" if score.diff_over == "items" else score.diff_why,
    )


def _over_seeds(values: Sequence[float], digits: int) -> str:
    """Writes the mean over seeds, and their standard deviation."""
    spread = f"± {number(float(np.std(values, ddof=1)), digits)}" if len(values) > 1 else ""
    return _lines(number(float(np.mean(values)), digits), spread)


def _over_rounds(found: OverRounds | None) -> str:
    """Writes a median over rounds and its interval; the baseline's own time has none."""
    if found is None:
        return NONE
    ends = interval(found.low, found.high, 2) if found.low < found.high else ""
    return _lines(f"{number(found.value, 2)}×", ends)


def _loss_digits(of: Comparison) -> int:
    """Chooses the decimals of the loss: three, or more if it is small."""
    losses = [abs(run.validation_loss) for run in of.runs if not run.diverged]
    least = min(filter(None, losses), default=1.0)
    return min(8, max(3, 2 - math.floor(math.log10(least))))


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


def quality(of: Comparison, table: pd.DataFrame) -> Section:
    """Makes the section with the main table; differences are drawn too."""
    lengths = of.runs[0].macs_lengths.items()
    compared = of.compared
    about = [
        f"{name}: {'; '.join(filter(None, [text, compared.matched.get(name)]))}"
        for name, text in compared.systems.items()
        if text or name in compared.matched
    ]
    notes = [
        f"MACs: multiply-accumulates of one forward pass over "
        f"{' and '.join(f'{length:,} positions in the {stack}' for stack, length in lengths)}.",
        "Times are those over the baseline's: of a step, forward and backward, and of a generated "
        "token. They are medians of nine rounds in which all systems take turns, with as many "
        "threads as a run; in brackets is their 95% interval over rounds.",
        f"Loss: {compared.loss_name}, of the final model on the validation part.",
        "Detectable: the true difference that about three of four such comparisons would find "
        "after Holm's correction. Where it is large, the lack of a star does not mean that systems "
        "are alike. Filled points in the figure are significant.",
    ]
    return Section(
        "Quality and cost",
        table=top_table([of], table),
        figures=differences(of, table[table["family"] == RANKING].reset_index()),
        notes=[*_notes(of), *notes, *about],
        more={
            "All scores (those of the CSV are not rounded)": table.drop(
                columns="of_seeds"
            ).set_index("system")
        },
    )


def differences(of: Comparison, ranking: pd.DataFrame) -> list[Figure]:
    """Draws the differences of the first score to the baseline."""
    known = ranking.dropna(subset="difference")
    if known.empty:
        return []
    figure, (plot,) = axes(height=0.9 + 0.36 * len(known))
    plot.axvline(0, color="#777777", linewidth=1.2)
    for at, (system, row) in enumerate(known.iterrows()):
        style = look(int(str(system)))
        colour, marker = style["color"], style["marker"]
        ends = [row["diff_low"], row["diff_high"]]
        plot.plot(ends, [at, at], color=colour, marker="|", linewidth=2)
        fill = colour if row["significant"] else "white"
        plot.plot(row["difference"], at, marker, color=colour, markerfacecolor=fill, markersize=8)
    plot.set_yticks(range(len(known)), map(shortened, known["system"]))
    plot.set_ylim(len(known) - 0.5, -0.5)
    plot.grid(visible=False, axis="y")
    plot.locator_params(axis="x", nbins=6)
    name = _heading(next(known.itertuples()))
    plot.set_xlabel(f"{name}, difference to {shortened(of.baseline)}")
    return [figure]


def shortened(name: str) -> str:
    """Leaves out the middle of a long name, since similar names differ at the end."""
    half = (_LETTERS - 1) // 2
    return name if len(name) <= _LETTERS else f"{name[:half]}…{name[-half:]}"


def other_scores(table: pd.DataFrame) -> Section | None:
    """Makes the section on further scores and further test sets: a column each."""
    others = table[table["family"] != RANKING]
    if others.empty:
        return None
    says = "As above; Δ is the difference to the baseline, and a star marks it as significant."
    return Section("Other scores", says, scores_table(others.assign(dataset="")))


# --- learning ---------------------------------------------------------------------------------


def learning(of: Comparison) -> Section:
    """Makes the section on learning: losses, how soon they are reached, and the task's figures."""
    names = dict.fromkeys(key for run in of.runs for record in run.history for key in record)
    places = {place for run in of.runs for place in run.units}
    titles = {
        "eval_loss": f"validation loss, {of.compared.loss_name}",
        "loss": "training loss",
        **{n: n for n in names if n not in _LOGGED and parts_of(n)[1] not in places},
    }
    says = (
        "Strong lines and the table are of means over seeds; thin lines are the seeds. Steps are "
        "counted to the first validation whose loss is down to the baseline's lowest. The training "
        "loss also holds what a recipe adds to it, such as label smoothing."
    )
    figures = [figure for name, title in titles.items() for figure in curves(of, name, title)]
    return Section("Learning", says, how_soon(of), figures)


def curve(runs: Sequence[RunResult], name: str) -> pd.Series:
    """Returns a figure of the history by step: the mean over runs, at the steps that all have."""
    found = [
        pd.Series({r["step"]: r[name] for r in run.history if name in r}, dtype=float).dropna()
        for run in runs
    ]
    return pd.concat(found or [pd.Series(dtype=float)], axis=1, join="inner").mean(axis=1)


def curves(of: Comparison, name: str, title: str) -> list[Figure]:
    """Draws a figure of the history by step: a line for each system, a thin one for each seed."""
    figure, (plot,) = axes(height=3.6)
    late: list[float] = []
    for at, system in enumerate(of.systems):
        runs, style = system.sound or system.runs, look(at)
        mean = curve(runs, name)
        if mean.empty:
            continue
        for run in runs if len(runs) > 1 else []:
            plot.plot(curve([run], name), color=style["color"], linewidth=0.8, alpha=0.6)
        label = shortened(system.name) + ("" if system.sound else " (diverged)")
        plot.plot(mean, **style, markersize=5, markevery=max(1, len(mean) // 8), label=label)
        late += [*mean[mean.index[-1] / 10 :]]
    if not plot.lines:
        return []
    if name.endswith("loss") and np.isfinite(late).all():
        # The first tenth leaves through the top, so that late differences are seen.
        room = 0.05 * (max(late) - min(late)) or 0.1
        plot.set_ylim(min(late) - room, max(late) + room)
    plot.locator_params(axis="x", nbins=5)
    plot.set_xlabel("step")
    plot.set_ylabel(title)
    legend(figure)
    return [figure]


def how_soon(of: Comparison) -> pd.DataFrame | None:
    """Makes a table of the lowest validation losses, and of when each system has the baseline's."""
    found = {system.name: curve(system.sound, "eval_loss") for system in of.systems}
    target, digits = found[of.baseline].min(), _loss_digits(of)
    rows = {
        name: {
            "Lowest validation loss": number(losses.min(), digits),
            f"Steps to {number(target, digits)}": number(losses.index[losses <= target].min(), 0),
        }
        for name, losses in found.items()
        if len(losses)
    }
    return _table(rows) if math.isfinite(target) else None


# --- outputs ----------------------------------------------------------------------------------


def samples(of: Comparison) -> Section | None:
    """Makes the section on outputs: those of all systems side by side, first those that differ."""
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for system in of.systems:
        for sample in system.outcomes[0][TEST].samples if system.outcomes else []:
            found.setdefault(tuple(sample.given.items()), {})[system.name] = sample.made
    if not found:
        return None
    ordered = sorted(found.items(), key=lambda item: len(set(item[1].values())) == 1)[:_SAMPLES]
    rows = [
        (str(at), name, text)
        for at, (given, made) in enumerate(ordered, 1)
        for name, text in (*given, *made.items())
    ]
    table = pd.DataFrame(rows, columns=["Number", "Of", "Text"]).set_index(["Number", "Of"])
    says = "From the test part, which no system was trained on, with the first seed of each."
    return Section("Samples", says, table)


def pictures(of: Comparison) -> Section | None:
    """Makes the section on pictures: those of all systems side by side; equal ones stand once."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for system in of.systems:
        own = system.outcomes[0][TEST].pictures if system.outcomes else []
        for at, each in enumerate(own, 1):
            views = found.setdefault(f"{at}. {each.title}", {})
            views.setdefault((each.png, each.caption), []).append(system.name)
    shown = {
        title: [(f"{', '.join(names)}. {text}", png) for (png, text), names in views.items()]
        for title, views in found.items()
    }
    says = "Of the first seed of each system."
    return Section("Pictures", says, pictures=shown) if shown else None


# --- how it was made --------------------------------------------------------------------------


def how_made(of: Comparison) -> Section:
    """Makes the section on data, tuning, runs, command, recipe, versions and machine."""
    compared = of.compared
    runs = [
        run.model_dump(include=_OF_RUNS) | {score.name: score.value for score in run.scores}
        for run in of.runs
    ]
    tries = [
        {"system": system}
        | {key: str(value) for key, value in each.values.items()}
        | {**each.model_dump(include=_OF_RUNS), "chosen": at == found.chosen}
        for system, found in compared.tuning.items()
        for at, each in enumerate(found.tries)
    ]
    counted = dict.fromkeys(f"{s.name}: {s.note}" for run in of.runs for s in run.scores if s.note)
    versions = [f"{name} {version}" for name, version in compared.versions.items()]
    more: Any = {
        "Command": compared.command,
        "Recipe": compared.recipe,
        "Every run": pd.DataFrame(runs).set_index("system"),
        "Versions, machine, and how scores are counted": "\n".join(
            [*versions, compared.machine, *counted]
        ),
    }
    notes = []
    if tries:
        more["Tuning"] = pd.DataFrame(tries).set_index("system")
        notes = [
            f"Tuning: a try trained a system with one combination of values and with seed "
            f"{next(iter(compared.tuning.values())).seed}, which no run has. The one of the lowest "
            f"loss on the validation part was chosen, once for all seeds: the chance of this "
            f"choice is not in the spread over seeds.",
            *(
                f"{system}: {note}"
                for system, found in compared.tuning.items()
                for note in found.notes
            ),
        ]
    facts = pd.DataFrame.from_dict(compared.facts, orient="index").rename_axis("part")
    table = facts if len(facts) else None
    return Section("How it was made", table=table, more=more, notes=notes)
