"""The section on how the work is shared among the units."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from headwise.analysis.decisions.load import LoadRecord
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Figures, Kind, Looks, kinds, legend_of
from headwise.report.figures import Banded, banded_lines
from headwise.report.formatting import NONE
from headwise.report.heads import expert_load, load_scale


def load_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Returns what is shown; None if no run decides anything."""
    found = kinds(runs, lambda run: run.load)
    if not found:
        return None
    return {
        "legend": legend_of(runs, looks),
        "runs": runs,
        "kinds": [
            {
                "kind": kind,
                "figures": _figures(runs, looks, kind),
                "scale": _scale(kind),
                "of_runs": _of_runs(runs, kind),
                "of_modules": _of_modules(runs, kind),
            }
            for kind in found
        ],
    }


def _of_runs(runs: Sequence[RunAnalysis], kind: Kind[LoadRecord]) -> list[list[str]]:
    """The rows of the table over the model."""
    found: dict[str, list[LoadRecord]] = {run.name: [] for run in runs}
    for number, _, record in kind.modules():
        found[runs[number].name].append(record)
    return [[name, *_evenness(records)] for name, records in found.items() if records]


def _of_modules(runs: Sequence[RunAnalysis], kind: Kind[LoadRecord]) -> list[list[str]]:
    """The rows of the table of modules."""
    names = [[run.name] if len(runs) > 1 else [] for run in runs]
    return [
        [place, str(record.where.layer), *names[number], *_evenness([record])]
        for number, place, record in kind.modules()
    ]


def _evenness(records: Sequence[LoadRecord]) -> list[str]:
    """How far from even modules are, on average, in the columns of the template."""
    shares = [record.share for record in records]
    chance = [s.variation_by_chance for s in shares if s.variation_by_chance is not None]
    units = sum(record.units for record in records)
    return [
        f"{fmean(share.variation for share in shares):.3f}",
        f"{fmean(chance):.3f}" if chance else NONE,
        f"{fmean(share.largest for share in shares):.2f}",
        f"{fmean(share.entropy for share in shares):.3f}",
        f"{fmean(share.effective for share in shares):.2f}",
        f"{sum(share.unused for share in shares)} of {units}",
        f"{fmean(record.balance for record in records):.3f}",
    ]


def _by_size(of_runs: dict[int, list[LoadRecord]]) -> dict[int, dict[int, list[LoadRecord]]]:
    """The number of units to the records of each run that have so many."""
    sizes: dict[int, dict[int, list[LoadRecord]]] = {}
    for number, records in of_runs.items():
        for record in records:
            sizes.setdefault(record.units, {}).setdefault(number, []).append(record)
    return sizes


def _figures(runs: Sequence[RunAnalysis], looks: Looks, kind: Kind[LoadRecord]) -> list[Figures]:
    """A row of tables and a row of sorted shares; a single table stands beside its shares."""
    tables, ordered = [], []
    for site, of_site in kind.sites.items():
        for units, of_runs in _by_size(of_site).items():
            for number, records in of_runs.items():
                loads = {record.where.layer: record.share.shares for record in records}
                title = f"{site}: share of each {kind.words.unit}"
                if len(runs) > 1:
                    title = f"{runs[number].name}: {title}"
                tables.append((title, expert_load(loads, kind.words, _scale(kind), site)))
            named = {runs[number].name: records for number, records in of_runs.items()}
            ordered.append(_sorted(named, looks, site, units, kind.words.units))
    return [tables + ordered] if len(tables) == 1 else [tables, ordered]


def _sorted(
    of_runs: dict[str, list[LoadRecord]], looks: Looks, site: str, number: int, units: str
) -> tuple[str, Markup]:
    """Shares from the largest to the smallest: of each layer, and the mean over the layers."""
    places = [str(rank + 1) for rank in range(number)]
    means, layers = [], []
    for name, records in of_runs.items():
        ordered = [
            [100 * share for share in sorted(record.share.shares, reverse=True)]
            for record in records
        ]
        for shares in ordered:
            points = {place: (share,) * 3 for place, share in zip(places, shares, strict=True)}
            layers.append(Banded(name, looks[name], points))
        spread = {
            place: (fmean(each), min(each), max(each))
            for place, each in zip(places, zip(*ordered, strict=True), strict=True)
        }
        means.append(Banded(name, looks[name], spread))
    svg = banded_lines(
        means,
        places,
        [(100 / number, f"even: {100 / number:.3g}%")],
        (f"{units.capitalize()}, largest share first", "Share, %"),
        f"{site}, shares of {number} {units}, sorted",
        thin=layers,
    )
    return f"{site}: {number} {units}, sorted", svg


def _scale(kind: Kind[LoadRecord]) -> float:
    return load_scale(record.share.shares for _, _, record in kind.modules())
