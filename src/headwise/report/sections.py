"""The sections of the page of an analysis: each is a small function of what was found.

What each part is worth comes first, then what goes to which unit, then the rest, folded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure
from pandas.api.types import is_float_dtype

from headwise.analysis.decided import Decided
from headwise.analysis.questions import alike, entropy, explained, load, pmi
from headwise.analysis.results import parts_of
from headwise.analysis.statistics import SIGNIFICANT
from headwise.report.page import Section, axes, heat, interval, look, number

if TYPE_CHECKING:
    from headwise.report.analysing import Analysis

# What is recorded of each unit in training, and what is recorded of a place.
_OF_UNITS = {"kappa": "κ", "alpha": "α", "share": "share of the work"}
_ENTROPY = "entropy, 1 is even"
_SIDE_BY_SIDE = 3  # plots
_SHOWN = 8  # rows of a table that are not folded
_DRAWN = 24  # rows of a figure
_CLASSES = 16  # of more, those that go to each unit are listed
_LISTED, _LEADING = 8, 5  # tokens of a unit, and those of them that are not folded


def analysis_sections(analyses: "Sequence[Analysis]", made: str) -> list[Section]:
    """Makes the sections of a page of analyses side by side; `made` is how the page was made."""

    def of_all(*makers: "Callable[[Analysis], Section | None]") -> Iterator[Section]:
        for make in makers:
            for each in analyses:
                section = make(each)
                if section is not None:
                    section.title += f": {each.name}" if len(analyses) > 1 else ""
                    yield section

    rest = of_all(of_decisions, of_load, of_layers, over_training)
    more: dict[str, Any] = {section.title: [replace(section, title="")] for section in rest}
    more["How this page was made"] = made
    counted = "Layers, heads and experts are counted from 0, as in the code."
    return [*of_all(of_ablations, of_labels), Section("More", counted, more=more)]


# --- what was found, in sentences -------------------------------------------------------------


def findings(decided: Sequence[Decided], ablations: pd.DataFrame | None) -> list[str]:
    """Says in sentences what was found of one model; those on the whole score come first."""
    found = [] if ablations is None else [*_of_score(ablations)]
    for unit, of in by_unit(decided).items():
        multiples = pd.concat([load(d) * d.weights.shape[1] for d in of])
        found.append(
            f"Of all layers, the busiest {unit} does {number(multiples.max(), 1)} times an even "
            f"share of the work, and the least busy {number(multiples.min(), 1)} times."
        )
    shares = [(share, label, d) for d in decided for label, share in explained_by(d).items()]
    if shares:
        share, label, d = max(shares, key=lambda each: each[0])
        found.append(
            f"The {label} alone explains up to {percent(share)} of the variance of the weights "
            f"({d.place})."
        )
    return found or ["Its attention decides nothing, and no part was removed."]


def _of_score(table: pd.DataFrame) -> Iterator[str]:
    """Says which part is worth most, how many are worth nothing, and what the weights are worth."""
    units = table[[removed(row) is not None for row in table.itertuples()]].dropna(subset="cost")
    if len(units):
        best, last = units.iloc[0], units.iloc[-1]
        if best.cost > 0:
            yield f"Worth most is {named(best)}: without it, {_loss(table, best)}."
        names = " and ".join(
            f"{unit}{'es' if unit.endswith('ch') else 's'}" for unit in units["unit"].unique()
        )
        needed = int(((units["corrected_p"] < SIGNIFICANT) & (units["cost"] > 0)).sum())
        if units["p"].isna().all():
            yield f"Which parts may be removed cannot be said: {best.why}."
        else:
            yield (
                f"Of the {len(units):,} {names}, removed one at a time, {needed:,} are shown to be "
                f"needed by these {table.attrs['items']:,} items. The cheapest is {named(last)}: "
                f"without it, {_loss(table, last)}."
            )
    for row in table[table["ablation"] == "uniform"].itertuples():
        yield f"With {named(row)} in place of the learned weights, {_loss(table, row)}."


def _loss(table: pd.DataFrame, row: Any) -> str:
    """Says what an ablation costs, as a share of the whole score."""
    about, digits = table.attrs, table.attrs["digits"] + 1
    whole = f"the {about['score']} of {number(about['value'], digits)}"
    within = interval(row.low, row.high, digits, before=" ", sign=True)
    chance = "" if row.corrected_p < SIGNIFICANT else f", which may be chance{within}"
    if not row.share > 0:  # nothing is lost, or the whole score is no share of anything
        return f"{whole} changes by {number(row.difference, digits, sign=True)}{chance}"
    if about["lower_is_better"]:
        return f"{whole} rises by {percent(row.share)}{chance}"
    return f"{percent(row.share)} of {whole} is lost{chance}"


def named(row: Any) -> str:
    """Names an ablation, a row of the table: by the unit that it removes, or by what it does."""
    if removed(row) is not None:
        return f"{row.unit} {removed(row)} ({row.place})"
    return " ".join([row.ablation, *map(str, row.options.values()), f"{row.unit} weights"])


def removed(row: Any) -> int | None:
    """Returns the number of the unit that an ablation removes; None if it changes a whole kind."""
    number_of_unit: int | None = row.options.get(row.unit)
    return number_of_unit


def percent(share: float) -> str:
    return f"{number(100 * share, 1 if abs(share) < 0.095 else 0)}%"


def by_unit(decided: Sequence[Decided]) -> dict[str, list[Decided]]:
    """Groups the systems that have several units by what these are."""
    found: dict[str, list[Decided]] = {}
    for d in decided:
        if d.weights.shape[1] > 1:
            found.setdefault(d.unit, []).append(d)
    return found


def explained_by(d: Decided) -> dict[str, float]:
    """Computes how much of the decisions each label explains."""
    found = {label: explained(d, label) for label in d.labels}
    return {label: share for label, share in found.items() if share == share}


# --- what each part is worth ------------------------------------------------------------------


def of_ablations(of: "Analysis") -> Section | None:
    """Shows what a model loses without a part: MAE table 5, Weighted table 3 and section 4.5."""
    table = of.ablations
    if table is None or table.empty:
        return None
    score = str(table.attrs["score"])
    says = (
        f"The trained model is evaluated once more without a part; nothing is trained again. "
        f"Filled points are more than chance (p < {SIGNIFICANT}). Two parts that do the same work "
        f"cost little one at a time, and much together."
    )
    note = (
        f"Intervals and p are over the {table.attrs['items']:,} items, and hold for this model "
        f"alone: another seed may use other parts. p is corrected by Holm's method for all "
        f"ablations of a model, and intervals are not. In maps, negative losses are gains."
    )
    programs = ["ablation", "path", "place", "unit", "options"]
    names = pd.Index(map(named, table.itertuples()), name="without, or with")
    whole = table.drop(columns=programs).set_index(names)
    first = whole[["value", "difference", "low", "high", "share", "corrected_p"]].head(_SHOWN)
    columns = {"value": score, "low": "95% interval from", "high": "to", "corrected_p": "p"}
    return Section(
        "What each part is worth",
        says,
        first.round(5).rename(columns=columns),
        [_forest(whole, score), *_maps(table)],
        more={f"All {len(table)} ablations": whole},
        notes=[note],
    )


def _forest(table: pd.DataFrame, score: str) -> Figure:
    """Draws what the costliest ablations change."""
    top = table.head(_DRAWN)
    figure, (plot,) = axes(height=1.0 + 0.25 * len(top), width=6.4)
    at, colour = range(len(top)), look(1)["color"]
    plot.axvline(0, color="grey", linewidth=0.8)
    plot.hlines(at, top["low"], top["high"], color=colour)
    filled = [colour if p < SIGNIFICANT else "white" for p in top["corrected_p"]]
    plot.scatter(top["difference"], at, c=filled, edgecolors=colour, zorder=3)
    plot.set_yticks(at, top.index)
    plot.invert_yaxis()
    plot.locator_params(axis="x", nbins=5)
    plot.set_xlabel(f"change of the {score}")
    more = f" ({len(top)} of {len(table)})" if len(table) > len(top) else ""
    plot.set_title(f"the costliest first{more}", loc="left", fontsize=11)
    return figure


def _maps(table: pd.DataFrame) -> Iterator[Figure]:
    """Draws what each unit of each layer costs, in percent of the whole score."""
    units = table.assign(number=[removed(row) for row in table.itertuples()])
    units["cost"] = 100 * units["share"]
    for unit, of in units.dropna(subset="number").groupby("unit", sort=False):
        cells = of.astype({"number": int}).pivot(index="place", columns="number", values="cost")
        title = f"% of the {table.attrs['score']} lost without {unit} n"
        yield heat(cells.sort_index(key=_by_numbers), title, around_zero=True, digits=1)


def _by_numbers(names: pd.Index) -> pd.Index:
    """Returns keys by which layer 10 comes after layer 9."""
    return names.astype(str).str.replace(r"\d+", lambda found: found[0].zfill(6), regex=True)


# --- what goes to which unit ------------------------------------------------------------------


def of_labels(of: "Analysis") -> Section | None:
    """Shows what goes to each unit: MAE table 6, MoA table 4, and TIM figure 2 as numbers."""
    deciding = [d for some in by_unit(of.decided).values() for d in some]
    labels = dict.fromkeys(
        name for d in deciding for name in d.positions.select_dtypes(exclude="number")
    )
    section = Section("What goes to which unit")
    for label in labels:
        known = [d for d in deciding if label in d.positions]
        # The place is shown where the label explains most; the others are folded.
        first = max(known, key=lambda d: explained_by(d).get(label, -1.0))
        if first.positions[label].nunique() <= _CLASSES:
            tables = {d.place: _by_class(d, label) for d in known}
            title = f"{label}, {first.place}:\n% that goes to each {first.unit}"
            section.figures.append(heat(tables[first.place], title, digits=0))
        else:
            tables = {d.place: pmi(d, label, _LISTED).set_index("unit").round(3) for d in known}
        tables = {place: table for place, table in tables.items() if len(table)}
        if not tables:  # nothing occurs five times
            continue
        if section.table is None and "pmi" in tables.get(first.place, ()):
            top = tables[first.place].groupby(level="unit").head(_LEADING)
            cells = top["name"] + "\n" + top["pmi"].map(lambda x: number(x, 1, sign=True))
            section.table = pd.DataFrame(
                {
                    f"{first.unit} {unit}": pd.Series([*of])
                    for unit, of in cells.groupby(level="unit")
                }
            )
            section.says = (
                f"For each {first.unit} of {first.place}, which the {label} explains best, the "
                f"table has what goes to it more often than others do, with "
                f"ln p({first.unit} | {label}) / p({first.unit}) (PMI). What occurs less than "
                f"five times is left out; by chance one in 40 stands out."
            )
        section.more[f"{label}, all layers"] = pd.concat(tables, names=["layer"])
    return section if section.more else None


def _by_class(d: Decided, label: str) -> pd.DataFrame:
    """Computes how much of the decisions at each class goes to each unit, in percent."""
    classes = d.positions[label]
    shares = pd.DataFrame(100 * d.shares[classes.index]).groupby(classes.to_numpy()).mean()
    return shares.sort_index(key=_by_numbers).rename_axis(label)


# --- the rest ---------------------------------------------------------------------------------


def of_decisions(of: "Analysis") -> Section | None:
    """Shows how undecided decisions are, MAE section 5.1, and what explains them, TIM figure 2."""
    names = {"mean": "entropy", "low": "95% interval from", "high": "to", "even": "entropy if even"}
    rows = {}
    for d in of.decided:
        shares = {f"explained by {label}": share for label, share in explained_by(d).items()}
        rows[d.place] = {**entropy(d).rename(names), **shares}
    says = (
        "The entropy −Σ w ln w of a decision with the weights w, in nats: 0 if one has all the "
        "weight. The interval is over sequences. What a label explains is the share of the "
        "variance of the weights that lies between its classes, less what as many classes explain "
        "by chance (ε²): 1 if it says all about a decision. Labels go together, so that the shares "
        "do not add up."
    )
    table = pd.DataFrame(rows).T.round(3)
    return Section("How decisions are made", says, table) if rows else None


def of_load(of: "Analysis") -> Section | None:
    """Shows how the work is shared: MAE table 8, MoA figures 3 and 4."""
    figures = [
        heat(pd.DataFrame([100 * load(d) for d in some]), f"% of the work of each {unit}", digits=0)
        for unit, some in by_unit(of.decided).items()
    ]
    says = (
        "How often an expert, a head or a mechanism is chosen; where none is chosen and they "
        "compete, how often its weight is the largest; elsewhere its mean weight."
    )
    return Section("How the work is shared", says, figures=figures) if figures else None


def of_layers(of: "Analysis") -> Section | None:
    """Shows how alike the layers decide: TIM figures 3 and 4."""
    figures = []
    for stack in dict.fromkeys(d.site.partition("_")[0] for d in of.decided):
        some = [d for d in of.decided if d.site.partition("_")[0] == stack and "position" in d.rows]
        if len(some) > 1 and len({d.weights.shape for d in some}) == 1:
            levels = [name for name, x in some[0].rows.items() if is_float_dtype(x)]
            table = alike(some, levels)
            table.columns = [name.replace("_", "\n") for name in table.index]
            figures.append(heat(table, stack, around_zero=True))
    says = (
        "The correlation of the weights of two layers, if these weigh two; else the RV "
        "coefficient: 1 if one decides as the other, whatever the numbers of their experts, and "
        "about 0 if they decide independently."
    )
    return Section("How alike the layers decide", says, figures=figures) if figures else None


def over_training(of: "Analysis") -> Section | None:
    """Shows what a run recorded while it was trained: TIM figure 2, Weighted figure 3."""
    found = recorded(of.history)
    plots = [*found.groupby("plot", sort=False)]
    figures = []
    for some in (plots[n : n + _SIDE_BY_SIDE] for n in range(0, len(plots), _SIDE_BY_SIDE)):
        figure, panels = axes(len(some), height=2.7, width=3.9 * len(some))
        for panel, (title, rows) in zip(panels, some, strict=True):
            lines = rows.pivot(index="step", columns="line", values="value")
            for at, values in enumerate(lines.T.to_numpy()):
                panel.plot(lines.index, values, linewidth=1.4, color=look(at)["color"])
            last = lines.ffill().iloc[-1]
            for name in dict.fromkeys([last.idxmax(), last.idxmin()]):
                panel.text(lines.index[-1], last[name], f" {name}", va="center", fontsize=9)
            panel.set_xlabel("step")
            panel.set_title(title, loc="left", fontsize=10)
        figures.append(figure)
    says = (
        "At each validation, on up to 32 sequences of that part. Entropy is 1 where all have the "
        "same weight, and what a label explains (ε²) is 1 where it decides everything. The highest "
        "and the lowest line are named."
    )
    return Section("Over training", says, figures=figures) if figures else None


def recorded(history: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """Returns what a run recorded of its systems, a row for each figure of a line at a step.

    The lines of a plot are units of a place, or places. An entropy is divided by that of even
    decisions.
    """
    rows = []
    for record in history:
        for name, value in record.items():
            kind, place, of = parts_of(name)
            if kind == "entropy":
                even = record.get(f"even {name}", 0.0)
                rows.append((record["step"], _ENTROPY, place, value / even if even else 1.0))
            elif kind == "explained":
                rows.append((record["step"], f"explained by the {of}", place, value))
            elif kind in _OF_UNITS:
                rows.append((record["step"], f"{_OF_UNITS[kind]}, {place}", of, value))
    return pd.DataFrame(rows, columns=["step", "plot", "line", "value"])
