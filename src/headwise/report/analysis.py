"""The result of an analysis, and its page: a section is a small function of the result.

Ablations come first, then the tokens of each unit, then the rest, folded.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pandas.api.types import is_float_dtype

from headwise.analysis.decisions import DecisionTable
from headwise.analysis.metrics import entropy, epsilon_squared, layer_similarity, pmi, unit_load
from headwise.analysis.results import decision_history, machine, versions
from headwise.analysis.statistics import SIGNIFICANT
from headwise.report.page import (
    Section,
    forest,
    format_interval,
    format_number,
    heatmap,
    line_style,
    subplots,
    write_page,
)

PAGE = "analysis.html"
_UNIT_TITLES = {"kappa": "κ", "alpha": "α", "share": "share of the work"}
_PLOTS_SIDE_BY_SIDE = 3
_TABLE_ROWS = 8  # that are not folded
_FIGURE_ROWS = 24
_MOST_CLASSES = 16  # if a label has more, the classes that go to each unit are listed
_TOKENS, _TOP_TOKENS = 8, 5  # of a unit, and those of them that are not folded


@dataclass(eq=False)
class Analysis:
    """The result of `headwise.analyse`: what the heads of a model do on data.

    Attributes:
        decisions: the decisions of each system of the model, a row for each, as numpy arrays and a
            DataFrame of their positions; empty if no system decides anything, such as standard
            attention.
        ablations: a row for each ablation, the costliest first; None if none was made.
        name: of the model, as the page shows it.
        data: the data in words.
        history: what a run recorded while it was trained.
    """

    decisions: list[DecisionTable]
    ablations: pd.DataFrame | None = None
    name: str = "model"
    data: str = ""
    history: Sequence[Mapping[str, float]] = field(default=(), repr=False)

    @cached_property
    def findings(self) -> list[str]:
        """The findings in sentences; shares are of the whole score."""
        findings = [] if self.ablations is None else [*_ablation_findings(self.ablations)]
        for unit, tables in _tables_by_unit(self).items():
            multiples = pd.concat([unit_load(d) * d.weights.shape[1] for d in tables])
            findings.append(
                f"Of all layers, the busiest {unit} does {format_number(multiples.max(), 1)} times "
                f"an even share of the work, and the least busy {format_number(multiples.min(), 1)}"
                f" times."
            )
        shares = [(x, label, d.place) for d in self.decisions for label, x in _explained(d).items()]
        if shares:
            share, label, place = max(shares)
            findings.append(
                f"The {label} alone explains up to {_percent(share)} of the variance of the "
                f"weights ({place})."
            )
        return findings or ["Its attention decides nothing, and no part was removed."]

    def write(self, folder: str | Path) -> Path:
        """Writes the page `analysis.html` into a folder, and its tables as CSV into `tables`.

        Returns:
            The path of the page.
        """
        return write_analyses([self], Path(folder))


def write_analyses(analyses: Sequence[Analysis], folder: Path, command: str = "") -> Path:
    """Writes the page of analyses side by side; returns its path."""
    is_single = len(analyses) == 1
    findings = [text if is_single else f"{a.name}: {text}" for a in analyses for text in a.findings]

    def sections(*makers: Callable[[Analysis], Section | None]) -> Iterator[Section]:
        for make in makers:
            for analysis in analyses:
                if (section := make(analysis)) is not None:
                    section.title += "" if is_single else f": {analysis.name}"
                    yield section

    data = [f"{analysis.name}: {analysis.data}" for analysis in analyses]
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    folded = sections(decisions_section, load_section, layers_section, training_section)
    more: dict[str, Any] = {section.title: [replace(section, title="")] for section in folded}
    more["How this page was made"] = "\n".join([command, *data, machine(), packages]).strip()
    counting = "Layers, heads and experts are counted from 0, as in the code."
    shown = [*sections(ablations_section, labels_section), Section("More", counting, more=more)]
    title = f"What the heads of {', '.join(analysis.name for analysis in analyses)} do"
    write_page(folder / PAGE, title, "\n".join(findings), shown)
    return folder / PAGE


# --- in sentences -------------------------------------------------------------------------------


def _ablation_findings(table: pd.DataFrame) -> Iterator[str]:
    """Says which part is worth most, how many are needed, and what the weights are worth."""
    is_unit = [_removed_unit(row) is not None for row in table.itertuples()]
    units = table[is_unit].dropna(subset="cost")
    if len(units):
        costliest, cheapest = units.iloc[0], units.iloc[-1]
        if costliest.cost > 0:
            yield f"Worth most is {_name(costliest)}: without it, {_change(table, costliest)}."
        names = " and ".join(
            f"{unit}{'es' if unit.endswith('ch') else 's'}" for unit in units["unit"].unique()
        )
        needed = int(((units["corrected_p"] < SIGNIFICANT) & (units["cost"] > 0)).sum())
        if units["p"].isna().all():
            yield f"Which parts may be removed cannot be said: {costliest.reason}."
        else:
            yield (
                f"Of the {len(units):,} {names}, removed one at a time, {needed:,} are shown to be "
                f"needed by these {table.attrs['items']:,} items. The cheapest is "
                f"{_name(cheapest)}: without it, {_change(table, cheapest)}."
            )
    for row in table[table["ablation"] == "uniform"].itertuples():
        yield f"With {_name(row)} in place of the learned weights, {_change(table, row)}."


def _change(table: pd.DataFrame, row: Any) -> str:
    """Says how an ablation changes the score, as a share of the whole score."""
    about, digits = table.attrs, table.attrs["digits"] + 1
    whole = f"the {about['score']} of {format_number(about['value'], digits)}"
    low, high, unit = row.low, row.high, ""
    if row.share > 0:  # the interval is that of the share
        scale = (100 if about["lower_is_better"] else -100) / about["value"]
        low, high = sorted((scale * low, scale * high))
        unit, digits = "%", _percent_digits(row.share)
    interval = format_interval(low, high, digits, before=" ", sign=True, unit=unit)
    chance = "" if row.corrected_p < SIGNIFICANT else f", which may be chance{interval}"
    if not row.share > 0:  # nothing is lost, or the whole score is no share of anything
        return f"{whole} changes by {format_number(row.difference, digits, sign=True)}{chance}"
    if about["lower_is_better"]:
        return f"{whole} rises by {_percent(row.share)}{chance}"
    return f"{_percent(row.share)} of {whole} is lost{chance}"


def _name(row: Any) -> str:
    """Names an ablation, a row of the table: by the unit that it removes, or by what it does."""
    if (number := _removed_unit(row)) is not None:
        return f"{row.unit} {number} ({row.place})"
    return " ".join([row.ablation, *map(str, row.options.values()), f"{row.unit} weights"])


def _removed_unit(row: Any) -> int | None:
    """Returns the number of the unit that an ablation removes; None if it changes a whole kind."""
    number: int | None = row.options.get(row.unit)
    return number


def _percent(share: float) -> str:
    return f"{format_number(100 * share, _percent_digits(share))}%"


def _percent_digits(share: float) -> int:
    return 0 if abs(share) >= 0.095 else 1 if abs(share) >= 0.00095 else 3


def _tables_by_unit(analysis: Analysis) -> dict[str, list[DecisionTable]]:
    """Groups the decision tables by kind of unit (`expert`, `head`); skips those of one unit."""
    tables: dict[str, list[DecisionTable]] = {}
    for d in analysis.decisions:
        if d.weights.shape[1] > 1:
            tables.setdefault(d.unit, []).append(d)
    return tables


def _explained(d: DecisionTable) -> dict[str, float]:
    """Computes how much of the decisions each label explains, where that is known."""
    shares = {label: epsilon_squared(d, label) for label in d.labels}
    return {label: share for label, share in shares.items() if not math.isnan(share)}


# --- the sections -------------------------------------------------------------------------------


def ablations_section(analysis: Analysis) -> Section | None:
    """Shows what a model loses without a part: MAE table 5, Weighted table 3 and section 4.5."""
    table = analysis.ablations
    if table is None or table.empty:
        return None
    score = str(table.attrs["score"])
    text = (
        f"The trained model is evaluated once more without a part; nothing is trained again. "
        f"Filled points are more than chance (p < {SIGNIFICANT}). Two parts that do the same work "
        f"cost little one at a time, and much together."
    )
    note = (
        f"Intervals and p are over the {table.attrs['items']:,} items, and hold for this model "
        f"alone: another seed may use other parts. p is corrected by Holm's method for all "
        f"ablations of a model, and intervals are not. In maps, negative losses are gains."
    )
    names = pd.Index(map(_name, table.itertuples()), name="without, or with")
    every = table.drop(columns=["ablation", "path", "place", "unit", "options"]).set_index(names)
    shown = every[["value", "difference", "low", "high", "share", "corrected_p"]].head(_TABLE_ROWS)
    headings = {"value": score, "low": "95% interval from", "high": "to", "corrected_p": "p"}
    drawn = every.head(_FIGURE_ROWS).assign(value=every["difference"])
    drawn["significant"] = drawn["corrected_p"] < SIGNIFICANT
    colours = [line_style(1)["color"]] * len(drawn)
    changes = forest(drawn, f"change of the {score}, the costliest first", colours, width=6.4)
    return Section(
        "What each part is worth",
        text,
        shown.rename(columns=headings),
        [changes, *_cost_maps(table)],
        more={f"All {len(table)} ablations": every},
        notes=[note],
    )


def _cost_maps(table: pd.DataFrame) -> Iterator[Figure]:
    """Draws the cost of each unit of each layer, in percent of the whole score."""
    units = table.assign(number=[_removed_unit(row) for row in table.itertuples()])
    units["cost"] = 100 * units["share"]
    for unit, rows in units.dropna(subset="number").groupby("unit", sort=False):
        cells = rows.astype({"number": int}).pivot(index="place", columns="number", values="cost")
        title = f"% of the {table.attrs['score']} lost without {unit} n"
        yield heatmap(cells.sort_index(key=_natural_keys), title, around_zero=True, digits=1)


def _natural_keys(names: pd.Index) -> pd.Index:
    """Returns keys by which layer 10 comes after layer 9."""
    return names.astype(str).str.replace(r"\d+", lambda match: match[0].zfill(6), regex=True)


def labels_section(analysis: Analysis) -> Section | None:
    """Shows what goes to each unit: MAE table 6, MoA table 4, and TIM figure 2 as numbers."""
    decisions = [d for tables in _tables_by_unit(analysis).values() for d in tables]
    labels = dict.fromkeys(
        label for d in decisions for label in d.positions.select_dtypes(exclude="number")
    )
    section = Section("What goes to which unit")
    for label in labels:
        labelled = [d for d in decisions if label in d.positions]
        # The layer is shown in which the label explains most; the others are folded.
        best = max(labelled, key=lambda d: _explained(d).get(label, -1.0))
        if best.positions[label].nunique() <= _MOST_CLASSES:
            tables = {d.place: _shares_by_class(d, label) for d in labelled}
            title = f"{label}, {best.place}:\n% that goes to each {best.unit}"
            section.figures.append(heatmap(tables[best.place], title, digits=0))
        else:
            tables = {d.place: pmi(d, label, _TOKENS).set_index("unit") for d in labelled}
            tables = {place: table[table["low"] > 0] for place, table in tables.items()}
            if tables[best.place].empty:
                section.text += (
                    f"In {best.place}, no {label} that occurs at least five times goes to one "
                    f"{best.unit} more often than the others, beyond chance. "
                )
        tables = {place: table for place, table in tables.items() if len(table)}
        if not tables:
            continue
        if section.table is None and "pmi" in tables.get(best.place, ()):
            top = tables[best.place].groupby(level="unit").head(_TOP_TOKENS)
            cells = top["name"] + "\n" + top["pmi"].map(lambda x: format_number(x, 1, sign=True))
            by_unit = cells.groupby(level="unit")
            section.table = pd.DataFrame(
                {f"{best.unit} {unit}": pd.Series([*tokens]) for unit, tokens in by_unit}
            )
            section.text += (
                f"For each {best.unit} of {best.place}, which the {label} explains best, the "
                f"table has what goes to it more often than others do, with "
                f"ln p({best.unit} | {label}) / p({best.unit}) (PMI), where its 95% interval lies "
                f"above 0: by chance one in 40 does. What occurs less than five times is left out."
            )
        section.more[f"{label}, all layers"] = pd.concat(tables, names=["layer"])
    return section if section.more or section.text else None


def _shares_by_class(d: DecisionTable, label: str) -> pd.DataFrame:
    """Computes how much of the decisions at each class goes to each unit, in percent."""
    classes = d.positions[label]
    shares = pd.DataFrame(100 * d.utilization[classes.index]).groupby(classes.to_numpy()).mean()
    return shares.sort_index(key=_natural_keys).rename_axis(label)


def decisions_section(analysis: Analysis) -> Section | None:
    """Shows how undecided decisions are, MAE section 5.1, and what explains them, TIM figure 2."""
    names = {"mean": "entropy", "low": "95% interval from", "high": "to", "even": "entropy if even"}
    rows = {}
    for d in analysis.decisions:
        shares = {f"explained by {label}": share for label, share in _explained(d).items()}
        rows[d.place] = {**entropy(d).rename(names), **shares}
    text = (
        "The entropy −Σ w ln w of a decision with the weights w, in nats: 0 if one has all the "
        "weight. The interval is over sequences. What a label explains is the share of the "
        "variance of the weights that lies between its classes, less what as many classes explain "
        "by chance (ε²): 1 if it says all about a decision. Labels go together, so that the shares "
        "do not add up."
    )
    return Section("How decisions are made", text, pd.DataFrame(rows).T) if rows else None


def load_section(analysis: Analysis) -> Section | None:
    """Shows how the work is shared: MAE table 8, MoA figures 3 and 4."""
    figures = []
    for unit, tables in _tables_by_unit(analysis).items():
        shares = pd.DataFrame([100 * unit_load(d) for d in tables])
        figures.append(heatmap(shares, f"% of the work of each {unit}", digits=0))
    text = (
        "How often an expert, a head or a mechanism is chosen; where none is chosen and they "
        "compete, how often its weight is the largest; elsewhere its mean weight."
    )
    return Section("How the work is shared", text, figures=figures) if figures else None


def layers_section(analysis: Analysis) -> Section | None:
    """Shows how alike the layers decide: TIM figures 3 and 4."""
    stacks: dict[str, list[DecisionTable]] = {}
    for d in analysis.decisions:
        if d.scope == "position":
            stacks.setdefault(d.site.partition("_")[0], []).append(d)
    figures = []
    for stack, tables in stacks.items():
        if len(tables) > 1 and len({d.weights.shape for d in tables}) == 1:
            levels = [name for name, x in tables[0].rows.items() if is_float_dtype(x)]
            similarity = layer_similarity(tables, levels)
            similarity.columns = [name.replace("_", "\n") for name in similarity.index]
            figures.append(heatmap(similarity, stack, around_zero=True))
    text = (
        "The correlation of the weights of two layers, if these weigh two; else the RV "
        "coefficient: 1 if one decides as the other, whatever the numbers of their experts, and "
        "about 0 if they decide independently."
    )
    return Section("How alike the layers decide", text, figures=figures) if figures else None


def training_section(analysis: Analysis) -> Section | None:
    """Shows what a run recorded while it was trained: TIM figure 2, Weighted figure 3."""
    history = decision_history(analysis.history)
    # A line is a unit in a plot of its layer, or a layer.
    of_units = (history["line"] != "") & (history["kind"] != "explained")
    unit_titles = history["kind"].replace(_UNIT_TITLES) + ", " + history["place"]
    titles = history["kind"].str.replace("explained", "explained by the ") + history["line"]
    names = history["line"].where(of_units, history["place"])
    history = history.assign(title=unit_titles.where(of_units, titles), line=names)
    plots = [*history.groupby("title", sort=False)]
    figures = []
    for start in range(0, len(plots), _PLOTS_SIDE_BY_SIDE):
        row = plots[start : start + _PLOTS_SIDE_BY_SIDE]
        figure, panels = subplots(len(row), height=2.7, width=3.9 * len(row))
        for panel, (title, rows) in zip(panels, row, strict=True):
            lines = rows.pivot(index="step", columns="line", values="value")
            for number, values in enumerate(lines.T.to_numpy()):
                panel.plot(lines.index, values, linewidth=1.4, color=line_style(number)["color"])
            last = lines.ffill().iloc[-1]
            for name in dict.fromkeys([last.idxmax(), last.idxmin()]):
                panel.text(lines.index[-1], last[name], f" {name}", va="center", fontsize=9)
            panel.set_xlabel("step")
            panel.set_title(title, loc="left", fontsize=10)
        figures.append(figure)
    text = (
        "At each validation, on up to 32 sequences of that part. Entropy is 1 where all have the "
        "same weight, and what a label explains (ε²) is 1 where it decides everything. The highest "
        "and the lowest line are named."
    )
    return Section("Over training", text, figures=figures) if figures else None
