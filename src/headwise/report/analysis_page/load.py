"""The section on how the work is shared among the units."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from headwise.analysis.decisions.load import LoadRecord
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Kind, Section, Site, kinds, legend
from headwise.report.figures import Banded, banded_lines
from headwise.report.formatting import NONE
from headwise.report.heads import expert_load, load_scale
from headwise.report.rendering import rendered
from headwise.report.svg import HEAT_OPACITY, Look

IDENTITY = "load"
MEASURES = {"lead": "leads", "choice": "is chosen", "weight": "mean weight"}


def load_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section; None if no run decides anything."""
    found = kinds(runs, lambda run: run.load)
    if not found:
        return None
    body = rendered(
        "analysis_page/load.html.jinja",
        legend=legend(runs, looks, IDENTITY),
        several=len(runs) > 1,
        heat_opacity=HEAT_OPACITY,
        kinds=[
            {
                "kind": kind,
                "rows": _over_model(runs, kind),
                "figures": _figures(runs, looks, kind, f"{IDENTITY}-{number}"),
                "scale": f"{_scale(kind):.1f}",
                "numbers": _numbers(runs, kind),
                "units": _units(runs, kind),
            }
            for number, kind in enumerate(found)
        ],
    )
    return Section(IDENTITY, "How the work is shared", body)


def _over_model(runs: Sequence[RunAnalysis], kind: Kind[LoadRecord]) -> list[dict[str, str]]:
    """Of each run the means over its modules."""
    return [
        {"name": run.name, **_evenness(records)}
        for number, run in enumerate(runs)
        if (records := kind.of_run(number))
    ]


def _evenness(records: Sequence[LoadRecord]) -> dict[str, str]:
    """How far from even modules are, on average."""
    shares = [record.share for record in records]
    chance = [s.variation_by_chance for s in shares if s.variation_by_chance is not None]
    units = sum(record.units for record in records)
    return {
        "variation": f"{fmean(share.variation for share in shares):.3f}",
        "by_chance": f"{fmean(chance):.3f}" if chance else NONE,
        "largest": f"{fmean(share.largest for share in shares):.2f}",
        "entropy": f"{fmean(share.entropy for share in shares):.3f}",
        "effective": f"{fmean(share.effective for share in shares):.2f}",
        "unused": f"{sum(share.unused for share in shares)} of {units}",
        "balance": f"{fmean(record.balance for record in records):.3f}",
    }


def _by_size(site: Site[LoadRecord]) -> dict[int, dict[int, list[LoadRecord]]]:
    """The number of units to the records of each run that have so many."""
    sizes: dict[int, dict[int, list[LoadRecord]]] = {}
    for number, records in site.of_runs.items():
        for record in records:
            sizes.setdefault(record.units, {}).setdefault(number, []).append(record)
    return sizes


def _figures(
    runs: Sequence[RunAnalysis], looks: Mapping[str, Look], kind: Kind[LoadRecord], identity: str
) -> list[list[tuple[str, Markup]]]:
    """A row of tables and a row of sorted shares; a single table stands beside its shares."""
    tables, ordered = _tables(runs, kind, identity), _sorted(runs, looks, kind, identity)
    return [tables + ordered] if len(tables) == 1 else [tables, ordered]


def _sorted(
    runs: Sequence[RunAnalysis], looks: Mapping[str, Look], kind: Kind[LoadRecord], identity: str
) -> list[tuple[str, Markup]]:
    """Shares from the largest to the smallest: of each layer, and the mean over the layers."""
    figures = []
    for at, site in enumerate(kind.sites):
        for units, of_runs in _by_size(site).items():
            places = [str(rank + 1) for rank in range(units)]
            means, layers = [], []
            for number, records in of_runs.items():
                name = runs[number].name
                ordered = [sorted(record.share.shares, reverse=True) for record in records]
                for shares in ordered:
                    points = {p: (100 * s,) * 3 for p, s in zip(places, shares, strict=True)}
                    layers.append(Banded(name, looks[name], points))
                of_rank = [[100 * share for share in each] for each in zip(*ordered, strict=True)]
                spread = {
                    place: (fmean(each), min(each), max(each))
                    for place, each in zip(places, of_rank, strict=True)
                }
                means.append(Banded(name, looks[name], spread))
            svg = banded_lines(
                means,
                places,
                [(100 / units, f"even: {100 / units:.3g}%")],
                (f"{kind.words.units.capitalize()}, largest share first", "Share, %"),
                f"{identity}-sorted-{at}-{units}",
                f"{site.title}, shares of {units} {kind.words.units}, sorted",
                thin=layers,
            )
            figures.append((f"{site.title}: {units} {kind.words.units}, sorted", svg))
    return figures


def _scale(kind: Kind[LoadRecord]) -> float:
    return load_scale(
        record.share.shares for site in kind.sites for of in site.of_runs.values() for record in of
    )


def _tables(
    runs: Sequence[RunAnalysis], kind: Kind[LoadRecord], identity: str
) -> list[tuple[str, Markup]]:
    """Layers × units of each site and run."""
    figures = []
    for at, site in enumerate(kind.sites):
        for units, of_runs in _by_size(site).items():
            for number, records in of_runs.items():
                loads = {record.where.layer: record.share.shares for record in records}
                title = f"{site.title}: share of each {kind.words.unit}"
                if len(runs) > 1:
                    title = f"{runs[number].name}: {title}"
                name = f"{identity}-table-{at}-{units}-{number}"
                svg = expert_load(loads, kind.words, _scale(kind), site.title, name)
                figures.append((title, svg))
    return figures


def _numbers(runs: Sequence[RunAnalysis], kind: Kind[LoadRecord]) -> list[dict[str, Any]]:
    """Returns a row for each module: how far from even its load is."""
    return [
        {
            "run": runs[number].name,
            "place": place,
            "layer": record.where.layer,
            **_evenness([record]),
        }
        for number, place, record in kind.modules()
    ]


def _units(runs: Sequence[RunAnalysis], kind: Kind[LoadRecord]) -> list[dict[str, Any]]:
    """Returns a table for each module: all measures of each unit, in percent with their error."""
    tables = []
    for number, place, record in kind.modules():
        measures = {"lead": record.leads, "choice": record.chosen, "weight": record.weight}
        title = f"{place}, layer {record.where.layer}"
        tables.append(
            {
                "title": f"{runs[number].name}: {title}" if len(runs) > 1 else title,
                "numbers": range(record.units),
                "rows": [
                    (MEASURES[name], _percents(shares.shares, shares.errors))
                    for name, shares in measures.items()
                    if shares is not None
                ],
            }
        )
    return tables


def _percents(shares: list[float], errors: list[float] | None) -> list[str]:
    if errors is None:
        return [f"{100 * share:.1f}" for share in shares]
    return [f"{100 * s:.1f} ± {100 * e:.1f}" for s, e in zip(shares, errors, strict=True)]
