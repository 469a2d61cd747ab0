"""The section on how undecided the systems are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from markupsafe import Markup

from headwise.analysis.decisions.entropy import PERCENTILES, EntropySpread, ModuleEntropy
from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.decisions.sums import difference
from headwise.analysis.statistics.estimates import Estimate
from headwise.report.analysis_page.section import Kind, Section, Site, kinds, legend
from headwise.report.figures import Banded, banded_lines
from headwise.report.formatting import NONE, signed
from headwise.report.rendering import rendered
from headwise.report.svg import Look

IDENTITY = "entropy"
Points = dict[str, tuple[float, float, float]]


def entropy_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section; None if no run decides anything."""
    found = kinds(runs, lambda run: run.entropy.modules if run.entropy else [])
    if not found:
        return None
    resolution = max(run.entropy.resolution for run in runs if run.entropy)
    body = rendered(
        "analysis_page/entropy.html.jinja",
        legend=legend(runs, looks, IDENTITY),
        several=len(runs) > 1,
        percents=PERCENTILES,
        resolution=f"{resolution:.1g}",
        kinds=[
            {
                "kind": kind,
                "rows": _rows(runs, kind),
                "reference": _reference(runs, kind),
                "figures": _figures(runs, looks, kind, f"{IDENTITY}-{number}"),
                "numbers": _numbers(runs, kind),
            }
            for number, kind in enumerate(found)
        ],
    )
    return Section(IDENTITY, "How undecided the decisions are", body)


def _reference(runs: Sequence[RunAnalysis], kind: Kind[ModuleEntropy]) -> str | None:
    """The last run with such systems, with which others are compared."""
    *others, last = [run.name for run in runs if _over_model(run, kind.name)]
    return last if others else None


def _rows(runs: Sequence[RunAnalysis], kind: Kind[ModuleEntropy]) -> list[dict[str, Any]]:
    """Of each run what holds over the model."""
    spreads = {run.name: _over_model(run, kind.name) for run in runs}
    found = {name: spread for name, spread in spreads.items() if spread is not None}
    *_, last = found.values()
    return [
        {
            "name": name,
            **_cells(spread),
            "difference": "reference" if spread is last else _difference(spread, last),
        }
        for name, spread in found.items()
    ]


def _over_model(run: RunAnalysis, system: str) -> EntropySpread | None:
    groups = run.entropy.models if run.entropy else []
    return next((group.spread for group in groups if group.system == system), None)


def _cells(spread: EntropySpread) -> dict[str, Any]:
    return {
        "mean": f"{spread.mean.value:.3f}",
        "interval": _interval(spread.mean),
        "uniform": f"{spread.uniform:.3f}",
        "deviation": f"{spread.deviation:.3f}",
        "percentiles": [f"{spread.percentiles[percent]:.3f}" for percent in PERCENTILES],
        "rows": f"{spread.rows:,}",
    }


def _interval(mean: Estimate) -> str:
    return NONE if mean.low is None else _unbroken(f"{mean.low:.3f} to {mean.high:.3f}")


def _difference(spread: EntropySpread, reference: EntropySpread) -> str:
    """The difference to the reference, unless other numbers of units make it meaningless."""
    if not math.isclose(spread.uniform, reference.uniform, rel_tol=1e-6):
        return NONE
    text = signed(spread.mean.value - reference.mean.value, 3)
    found = difference(spread.mean, reference.mean)
    if found is None:
        return text
    return _unbroken(f"{text} ({signed(found.low, 3)} to {signed(found.high, 3)})")


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _figures(
    runs: Sequence[RunAnalysis],
    looks: Mapping[str, Look],
    kind: Kind[ModuleEntropy],
    identity: str,
) -> list[list[tuple[str, Markup]]]:
    """A row of figures by layer, one by position and one by frequency: in each, the sites.

    A single site has all in one row.
    """
    drawn: dict[str, tuple[str, Callable[[Sequence[ModuleEntropy]], Points]]] = {
        "layer": ("Layer", _by_layer),
        "position": ("Position in the sequence", _by_position),
        "frequency": ("Occurrences in the data", _by_frequency),
    }
    rows = []
    for name, (axis, points_of) in drawn.items():
        figures = []
        for at, site in enumerate(kind.sites):
            lines = [
                Banded(runs[number].name, looks[runs[number].name], points)
                for number, modules in site.of_runs.items()
                if (points := points_of(modules))
            ]
            if not lines:
                continue
            lowest = [
                replace(line, points={at: (low,) * 3 for at, (_, low, _) in line.points.items()})
                for line in lines
                if name == "layer" and kind.words.shows_lowest
            ]
            svg = banded_lines(
                lines,
                sorted({place for line in lines for place in line.points}, key=_first),
                _uniform(site),
                (axis, "Entropy, nats"),
                f"{identity}-{name}-{at}",
                f"{site.title}, entropy by {name}",
                thin=lowest,
            )
            figures.append((f"{site.title}: by {name}", svg))
        rows.append(figures)
    if len(kind.sites) == 1:
        return [[figure for figures in rows for figure in figures]]
    return [figures for figures in rows if figures]


def _uniform(site: Site[ModuleEntropy]) -> list[tuple[float, str]]:
    bounds = {round(m.spread.uniform, 6) for modules in site.of_runs.values() for m in modules}
    return [(bound, f"uniform: ln {math.exp(bound):.0f} = {bound:.2f}") for bound in sorted(bounds)]


def _by_layer(modules: Sequence[ModuleEntropy]) -> Points:
    return {
        str(module.where.layer): (
            module.spread.mean.value,
            module.spread.percentiles[PERCENTILES[0]],
            module.spread.percentiles[PERCENTILES[-1]],
        )
        for module in modules
    }


def _by_position(modules: Sequence[ModuleEntropy]) -> Points:
    return _over_layers(
        [{_range(at.first, at.last): at.mean.value for at in m.by_position} for m in modules]
    )


def _by_frequency(modules: Sequence[ModuleEntropy]) -> Points:
    return _over_layers(
        [{_range(at.fewest, at.most): at.mean for at in m.by_frequency} for m in modules]
    )


def _over_layers(values: Sequence[Mapping[str, float]]) -> Points:
    """Returns for each class the mean, the lowest and the highest value of the layers with it."""
    found: dict[str, list[float]] = {}
    for of_layer in values:
        for place, value in of_layer.items():
            found.setdefault(place, []).append(value)
    return {place: (fmean(of), min(of), max(of)) for place, of in found.items()}


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _first(place: str) -> int:
    return int(place.partition("–")[0])


def _numbers(runs: Sequence[RunAnalysis], kind: Kind[ModuleEntropy]) -> list[dict[str, Any]]:
    """Returns a row for each module: what the figures show of it."""
    return [
        {
            "run": runs[number].name,
            "place": place,
            "layer": module.where.layer,
            "decides": module.decides,
            **_cells(module.spread),
        }
        for number, place, module in kind.modules()
    ]
