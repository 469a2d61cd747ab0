"""The section on how undecided the systems are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from headwise.analysis.decisions.entropy import PERCENTILES, EntropySpread, ModuleEntropy
from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.decisions.sums import difference
from headwise.report.analysis_page.section import Figures, Kind, Looks, kinds, legend_of
from headwise.report.figures import Banded, banded_lines
from headwise.report.formatting import NONE, signed

Points = dict[str, tuple[float, float, float]]


def entropy_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Returns what is shown, with runs compared to the last; None if none decides."""
    found = kinds(runs, lambda run: run.entropy.modules if run.entropy else [])
    if not found:
        return None
    return {
        "legend": legend_of(runs, looks),
        "runs": runs,
        "percents": {percent: f"{percent}th percentile" for percent in PERCENTILES},
        "resolution": max(run.entropy.resolution for run in runs if run.entropy),
        "difference": _difference,
        "kinds": [
            (kind, _over_model(runs, kind.name), _figures(runs, looks, kind)) for kind in found
        ],
    }


def _over_model(runs: Sequence[RunAnalysis], system: str) -> dict[str, EntropySpread]:
    return {
        run.name: group.spread
        for run in runs
        for group in (run.entropy.models if run.entropy else [])
        if group.system == system
    }


def _difference(spread: EntropySpread, reference: EntropySpread) -> str:
    """The difference to the reference, unless other numbers of units make it meaningless."""
    if not math.isclose(spread.uniform, reference.uniform, rel_tol=1e-6):
        return NONE
    text = signed(spread.mean.value - reference.mean.value, 3)
    found = difference(spread.mean, reference.mean)
    if found is not None:
        text += f" ({signed(found.low, 3)} to {signed(found.high, 3)})"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _figures(runs: Sequence[RunAnalysis], looks: Looks, kind: Kind[ModuleEntropy]) -> list[Figures]:
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
        for site, of_runs in kind.sites.items():
            lines = [
                Banded(runs[number].name, looks[runs[number].name], points)
                for number, modules in of_runs.items()
                if (points := points_of(modules))
            ]
            if not lines:
                continue
            lowest = [
                replace(line, points={at: (low,) * 3 for at, (_, low, _) in line.points.items()})
                for line in lines
                if name == "layer" and kind.words.shows_lowest
            ]
            places = {place for line in lines for place in line.points}
            svg = banded_lines(
                lines,
                sorted(places, key=lambda place: int(place.partition("–")[0])),
                _uniform(of_runs),
                (axis, "Entropy, nats"),
                f"{site}, entropy by {name}",
                thin=lowest,
            )
            figures.append((f"{site}: by {name}", svg))
        rows.append(figures)
    if len(kind.sites) == 1:
        return [[figure for figures in rows for figure in figures]]
    return [figures for figures in rows if figures]


def _uniform(of_runs: Mapping[int, list[ModuleEntropy]]) -> list[tuple[float, str]]:
    bounds = {round(m.spread.uniform, 6) for modules in of_runs.values() for m in modules}
    return [(bound, f"uniform: ln {math.exp(bound):.0f} = {bound:.2f}") for bound in sorted(bounds)]


def _by_layer(modules: Sequence[ModuleEntropy]) -> Points:
    lowest, highest = PERCENTILES[0], PERCENTILES[-1]
    spreads = {str(module.where.layer): module.spread for module in modules}
    return {
        layer: (spread.mean.value, spread.percentiles[lowest], spread.percentiles[highest])
        for layer, spread in spreads.items()
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
