"""The sections of the page of an analysis: each is a small function of what was found.

What each part is worth comes first, then what goes to which unit, then the rest. Runs that are
analysed together stand side by side, each under its name.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pandas.api.types import is_float_dtype

from headwise.analysis.decided import Decided
from headwise.analysis.questions import alike, entropy, explained, load, pmi, ranges
from headwise.analysis.results import parts_of
from headwise.analysis.statistics import SIGNIFICANT, p_value
from headwise.report.findings import (
    SITES,
    by_unit,
    change_in_words,
    explained_by,
    labels_of,
    part,
    percent,
    plural,
    short_place,
    single_units,
    where,
    word_of,
)
from headwise.report.page import NONE, Section, axes, heat, look, number

Runs = Mapping[str, Sequence[Decided]]  # name of a run to what its systems decided
Tables = Mapping[str, pd.DataFrame]  # name of a run to its ablations, see `ablate`
Histories = Mapping[str, Sequence[Mapping[str, float]]]  # name of a run to its `history`

# What is recorded of each unit in training.
_RECORDED = {"kappa": "κ", "alpha": "α", "share": "share of the work"}
_SMOOTHED = ("kappa", "alpha")
_COURSES = 3  # plots side by side
_SHOWN = 8  # rows of a table that are not folded
_DRAWN = 24  # rows of a figure
_CLASSES = 16  # of more, those that go to each unit are listed
_LISTED, _LEADING = 8, 5  # tokens of a unit, and those of them that are not folded
_POINTS = 120  # of a curve


def _named(runs: Mapping[str, Any], run: str, text: str, between: str = ": ") -> str:
    """Writes a title, with the name of the run before it if there are several."""
    return text if len(runs) == 1 else f"{run}{between}{text}"


def _together(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Joins the tables of several runs."""
    return pd.concat(tables, names=["model"]) if len(tables) > 1 else next(iter(tables.values()))


# --- what each part is worth ------------------------------------------------------------------


def of_ablations(ablated: Tables) -> Section | None:
    """What a model loses without a part: MAE table 5, Weighted table 3 and section 4.5."""
    ablated = {run: table for run, table in ablated.items() if len(table)}
    if not ablated:
        return None
    items = next(iter(ablated.values())).attrs["items"]
    says = (
        f"The trained model is evaluated once more without a part; nothing is trained again. Bold "
        f"numbers and filled points are more than chance (p < {SIGNIFICANT}). Two parts that do "
        f"the same work cost little one at a time, and much together."
    )
    note = (
        f"Intervals and p are over the {items:,} items, and hold for this model alone: another "
        f"seed may use other parts. p is corrected by Holm's method for all ablations of a model."
    )
    figures = [
        figure
        for run, table in ablated.items()
        for figure in (_forest(ablated, run, table), *_maps(ablated, run, table))
    ]
    return Section(
        "What each part is worth",
        says,
        _together({run: _worth(table.head(_SHOWN)) for run, table in ablated.items()}),
        figures,
        more={
            _named(ablated, run, f"All {len(table)} ablations"): table.drop(columns="options")
            for run, table in ablated.items()
        },
        notes=[note],
    )


def _worth(table: pd.DataFrame) -> pd.DataFrame:
    digits = table.attrs["digits"] + 1
    names, rows = [], []
    for row in table.itertuples():
        names.append(f"without {part(row)}" if row.unit in row.options else part(row))
        text = change_in_words(table, row) + ("*" if row.corrected_p < SIGNIFICANT else "")
        if row.low == row.low:
            ends = (number(end, digits, sign=True) for end in (row.low, row.high))
            text += f"\n{' to '.join(ends)}"
        rows.append(
            {
                str(table.attrs["score"]): number(row.value, digits),
                "Difference\n95% interval": text,
                "Share of the whole": percent(row.share),
                "Chance": p_value(row.corrected_p) if math.isfinite(row.p) else row.why,
            }
        )
    return pd.DataFrame(rows, index=names)


def _forest(ablated: Tables, run: str, table: pd.DataFrame) -> Figure:
    top = table.head(_DRAWN)
    figure, (plot,) = axes(height=1.0 + 0.25 * len(top), width=6.4)
    at, colour = range(len(top)), look(1)["color"]
    plot.axvline(0, color="grey", linewidth=0.8)
    plot.hlines(at, top["low"], top["high"], color=colour)
    filled = [colour if p < SIGNIFICANT else "white" for p in top["corrected_p"]]
    plot.scatter(top["difference"], at, c=filled, edgecolors=colour, zorder=3)
    names = [
        f"{short_place(row.place)}: {row.unit} {row.options[row.unit]}"
        if row.unit in row.options
        else part(row)
        for row in top.itertuples()
    ]
    plot.set_yticks(at, names)
    plot.invert_yaxis()
    plot.set_xlabel(f"change of the {table.attrs['score']}")
    more = f" ({len(top)} of {len(table)})" if len(table) > len(top) else ""
    plot.set_title(_named(ablated, run, f"the costliest first{more}"), loc="left", fontsize=11)
    return figure


def _maps(ablated: Tables, run: str, table: pd.DataFrame) -> Iterator[Figure]:
    """Draws what each unit of each layer costs, in percent of the whole score."""
    costs: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in single_units(table).sort_values("path", key=_by_numbers).itertuples():
        site, _, layer = row.place.rpartition(".")
        site, layer = (SITES[site], f"layer {layer}") if site in SITES else ("", row.place)
        of_site = costs.setdefault((site, row.unit), {})
        of_site.setdefault(layer, {})[row.options[row.unit]] = 100 * row.share
    for (site, unit), of_site in costs.items():
        title = f"{site}: " if site else ""
        title += f"% of the {table.attrs['score']} lost without {unit} n"
        cells = pd.DataFrame(of_site).T.sort_index(axis=1)
        yield heat(cells, _named(ablated, run, title, "\n"), centre=0, digits=1)


def _by_numbers(paths: pd.Series) -> pd.Series:
    """Returns keys by which layer 10 comes after layer 9."""
    return paths.astype(str).str.replace(r"\d+", lambda found: found[0].zfill(6), regex=True)


# --- what goes to which unit ------------------------------------------------------------------


def of_labels(decided: Sequence[Decided], run: str = "") -> Section | None:
    """What goes to each unit: MAE table 6, MoA table 4, and TIM figure 2 as numbers."""
    found = [
        (explained(d, label) if label in d.rows else math.nan, d, label)
        for d in decided
        for label in labels_of(d)
        if d.weights.shape[1] > 1
    ]
    if not found:
        return None
    # Of each label the place is shown where it explains most.
    found.sort(key=lambda each: -each[0] if each[0] == each[0] else 1.0)
    says, shown = "", None
    drawn: dict[str, Figure] = {}
    tables: dict[str, dict[str, pd.DataFrame]] = {}
    for _, d, label in found:
        word, place, shares = word_of(d, label), where(d.place), _by_class(d, label)
        of_label = tables.setdefault(f"{run} {word}, all layers".strip(), {})
        if len(shares) <= _CLASSES:
            of_label[place] = shares
            title = f"{word}, {short_place(d.place)}:\n% that goes to each"
            drawn.setdefault(label, heat(shares, title, digits=0))
            continue
        of_label[place] = pmi(d, label, _LISTED).set_index("unit").round(3)
        if shown is None:
            shown = _leading(of_label[place], d.unit)
            says = (
                f"For each {d.unit} of the {place}, the table has the {word}s that go to it more "
                f"often than others do, with ln p({d.unit} | {word}) / p({d.unit}) (PMI). Those "
                f"that occur less than five times are left out; by chance one in 40 stands out. "
            )
    if len({d.place for _, d, _ in found}) > 1:
        says += "Shown is the layer whose decisions a label explains best; the others are folded."
    units = " or ".join(dict.fromkeys(plural(d.unit) for _, d, _ in found))
    title = f"What goes to which {units}{f' of {run}' if run else ''}"
    more: dict[str, Any] = {
        title: pd.concat(of_label, names=["layer"]) for title, of_label in tables.items()
    }
    return Section(title, says, shown, [*drawn.values()], more=more)


def _by_class(d: Decided, label: str) -> pd.DataFrame:
    """Computes how much of the decisions at each class goes to each unit, in percent."""
    at = d.positions if label in d.positions else d.rows
    shares = pd.DataFrame(100 * d.shares[at.index]).groupby(at[label].to_numpy()).mean()
    shares = shares.sort_index(key=_by_numbers)
    return shares.rename(columns=f"{d.unit} {{}}".format)


def _leading(table: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Lists the first tokens of each unit, a column, with their PMI."""
    columns = {}
    for at, of in table.groupby(level="unit"):
        pairs = zip(of["name"].head(_LEADING), of["pmi"], strict=False)
        columns[f"{unit} {at}"] = pd.Series(
            [f"{name}\n{number(x, 1, sign=True)}" for name, x in pairs]
        )
    return pd.DataFrame(columns).rename(index=lambda rank: rank + 1)


# --- the rest ---------------------------------------------------------------------------------


def of_entropy(runs: Runs) -> Section | None:
    """How undecided the decisions are: MAE section 5.1, TIM figure 3."""
    tables = {run: pd.DataFrame([_undecided(d) for d in of]) for run, of in runs.items() if of}
    says = (
        "The entropy −Σ w ln w of a decision with the weights w, in nats: 0 if one has all the "
        "weight. The interval is over sequences."
    )
    return Section("", says, _together(tables)) if tables else None


def _undecided(d: Decided) -> pd.Series:
    found = entropy(d)
    ends = f"{number(found['low'], 2)} to {number(found['high'], 2)}"
    figures = {
        "Mean": found["mean"],
        "95% interval": NONE if found["low"] != found["low"] else ends,
        "10th percentile": found["10%"],
        "90th percentile": found["90%"],
        "If all weigh alike": found["even"],
        "Mean, in % of that": percent(found["mean"] / found["even"]) if found["even"] else NONE,
    }
    return pd.Series(figures, name=where(d.place))


def of_load(runs: Runs) -> Section | None:
    """How the work is shared: MAE table 8, MoA figures 3 and 4."""
    figures = []
    for run, of in runs.items():
        for unit, some in by_unit(of).items():
            shares = pd.DataFrame([100 * load(d).rename(short_place(d.place)) for d in some])
            title = _named(runs, run, f"% of the work of each {unit}")
            figures.append(heat(shares, title, digits=0))
    says = (
        "How often an expert, a head or a mechanism is chosen; where none is chosen and they "
        "compete, how often its weight is the largest; elsewhere its mean weight."
    )
    return Section("", says, figures=figures) if figures else None


def of_explained(runs: Runs) -> Section | None:
    """What explains the decisions: TIM figure 2."""
    tables = {
        run: pd.DataFrame([pd.Series(found, name=where(d.place)) for d, found in known])
        for run, of in runs.items()
        if (known := [(d, found) for d in of if (found := explained_by(d))])
    }
    says = (
        "The share of the variance of the weights that lies between the classes of a label, less "
        "what as many classes explain by chance (ε²): 1 if the label says all about a decision. "
        "Labels go together, so that the shares do not add up."
    )
    return Section("", says, _together(tables)) if tables else None


def of_layers(runs: Runs) -> Section | None:
    """How alike the layers decide: TIM figures 3 and 4."""
    figures = []
    for run, of in runs.items():
        for stack in dict.fromkeys(d.site.partition("_")[0] for d in of):
            some = [d for d in of if d.site.partition("_")[0] == stack and "position" in d.rows]
            if len(some) > 1 and len({d.weights.shape for d in some}) == 1:
                levels = [name for name, x in some[0].rows.items() if is_float_dtype(x)]
                table = alike(some, levels).rename(index=short_place)
                table.columns = [name.replace(" ", "\n") for name in table.index]
                figures.append(heat(table, _named(runs, run, stack), centre=0))
    says = (
        "The correlation of the weights of two layers, if these weigh two; else the RV "
        "coefficient, less what is expected by chance: 1 if one decides as the other, whatever the "
        "numbers of their experts, and about 0 if they decide independently."
    )
    return Section("", says, figures=figures) if figures else None


def of_ranges(runs: Runs) -> Section | None:
    """The weights of frequent tokens: TIM figure 4, left."""
    tables: dict[str, Any] = {}
    for run, of in runs.items():
        having = [d for d in of if "token" in d.positions and d.weights.shape[1] > 1]
        if having:
            d = max(having, key=lambda d: explained_by(d).get(d.word, -1.0))
            cells = ranges(d).assign(
                cell=lambda x: [
                    f"{number(row.mean, 2)}\n{number(row.least, 2)} to {number(row.greatest, 2)}"
                    for row in x.itertuples()
                ]
            )
            table = cells.pivot(index="token", columns="unit", values="cell")
            tables[_named(runs, run, where(d.place))] = table.rename(
                columns=f"{d.unit} {{}}".format
            )
    says = "The mean weight where a frequent token stands, and below it the least and the greatest."
    return Section("", says, more=tables) if tables else None


def over_training(histories: Histories) -> Section | None:
    """What runs recorded while they were trained: TIM figure 2, Weighted figure 3."""
    figures: list[Figure] = []
    for run, history in histories.items():
        table = pd.DataFrame(history)
        if "step" not in table:
            continue
        table = table.set_index("step")
        plots = {
            f"{_RECORDED[kind]}, {short_place(place)}": curves
            for kind in _RECORDED
            for place, curves in _curves(table, kind).items()
            if kind != "share" or f"alpha {place}/0" not in table  # α is the share
        }
        plots |= _by_label(table)
        drawn = [(title, curves) for title, curves in plots.items() if curves.size]
        for some in (drawn[n : n + _COURSES] for n in range(0, len(drawn), _COURSES)):
            figure, panels = axes(len(some), height=2.7, width=3.9 * len(some))
            for panel, (title, curves) in zip(panels, some, strict=True):
                _draw(panel, curves)
                panel.set_title(_named(histories, run, title, "\n"), loc="left", fontsize=10)
            figures.append(figure)
    says = (
        "Of decisions on a few sequences, at validations. A label explains all of them at 1. κ and "
        "α of the Weighted Transformer are smoothed by a mean of three records, as in its figure "
        "3. The highest and the lowest line are named."
    )
    return Section("", says, figures=figures) if figures else None


def _by_label(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Collects how much each label explains, and the entropy: a column for each place."""
    found: dict[str, dict[str, pd.Series]] = {}
    for place, curves in _curves(table, "explained").items():
        for label, curve in curves.items():
            found.setdefault(f"explained by the {label}", {})[short_place(place)] = curve
    for name in table:
        kind, place, _ = parts_of(name)
        if kind == "entropy":
            of_even = (table[name] / table[f"even entropy {place}"]).dropna()
            found.setdefault("entropy, 1 is even", {})[short_place(place)] = of_even
    return {title: pd.DataFrame(of) for title, of in found.items()}


def _curves(table: pd.DataFrame, kind: str) -> dict[str, pd.DataFrame]:
    """Collects what is recorded of a kind by place: a column for each unit or label."""
    found: dict[str, dict[str, pd.Series]] = {}
    for name in table:
        of_kind, place, of = parts_of(name)
        if of_kind == kind:
            found.setdefault(place, {})[of] = table[name]
    curves = {place: pd.DataFrame(of).dropna(how="all") for place, of in found.items()}
    if kind not in _SMOOTHED:
        return curves
    return {place: of.rolling(3, center=True, min_periods=1).mean() for place, of in curves.items()}


def _draw(panel: Any, curves: pd.DataFrame) -> None:
    some = curves.iloc[:: max(1, len(curves) // _POINTS)]
    for at, values in enumerate(some.T.to_numpy()):
        panel.plot(some.index, values, linewidth=1.4, color=look(at)["color"])
    last = some.ffill().iloc[-1]
    for name in dict.fromkeys([last.idxmax(), last.idxmin()]):
        panel.text(some.index[-1], last[name], f" {name}", va="center", fontsize=9)
    panel.set_xlabel("step")


# --- the page ---------------------------------------------------------------------------------


def analysis_sections(
    runs: Runs, ablated: Tables, histories: Histories, made: str
) -> list[Section | None]:
    """Makes the sections of a page of analyses side by side.

    Args:
        runs: name of a run to what its systems decided.
        ablated: name of a run to its ablations.
        histories: name of a run to what was recorded while it was trained.
        made: how the page was made.
    """
    rest = {
        "How undecided the decisions are": of_entropy(runs),
        "How the work is shared": of_load(runs),
        "What explains the decisions": of_explained(runs),
        "How alike the layers decide": of_layers(runs),
        "The weights of frequent tokens": of_ranges(runs),
        "Over training": over_training(histories),
    }
    more: dict[str, Any] = {title: [section] for title, section in rest.items() if section}
    more["How this page was made"] = made
    counted = "Layers, heads and experts are counted from 0, as in the code."
    of_each = [of_labels(of, run if len(runs) > 1 else "") for run, of in runs.items()]
    return [of_ablations(ablated), *of_each, Section("More", counted, more=more)]
