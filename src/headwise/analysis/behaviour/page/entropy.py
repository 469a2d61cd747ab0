"""The section on how undecided the systems are."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from headwise.analysis.behaviour.cluster_sums import difference
from headwise.analysis.behaviour.entropy import EntropySpread, ModuleEntropy
from headwise.analysis.behaviour.histogram import PERCENTILES
from headwise.analysis.behaviour.page.places import Kind, Site, kinds, legend
from headwise.analysis.behaviour.page.section import Section
from headwise.analysis.behaviour.results import RunAnalysis
from headwise.analysis.chance.estimates import Estimate
from headwise.analysis.figures.bands import Banded, banded_lines
from headwise.analysis.figures.looks import Look
from headwise.analysis.formatting import NONE, signed
from headwise.analysis.rendering import rendered

IDENTITY = "entropy"
Points = dict[str, tuple[float, float, float]]


def entropy_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section; None if no run decides anything.

    Args:
        runs: side by side; others are compared with the last.
        looks: of the runs, by name.
    """
    found = kinds(runs, lambda run: run.entropy.modules if run.entropy else [])
    if not found:
        return None
    resolution = max(run.entropy.resolution for run in runs if run.entropy)
    body = rendered(
        "behaviour/page/entropy.html.jinja",
        legend=legend(runs, looks, IDENTITY),
        reference=runs[-1].name if len(runs) > 1 else None,
        percents=PERCENTILES,
        resolution=f"{resolution:.1g}",
        kinds=[
            {
                "kind": kind,
                "rows": _rows(runs, kind),
                "figures": [
                    figure
                    for at, site in enumerate(kind.sites)
                    for figure in _figures(runs, looks, site, f"{IDENTITY}-{number}-{at}")
                ],
                "numbers": _numbers(runs, kind),
            }
            for number, kind in enumerate(found)
        ],
    )
    return Section(IDENTITY, "How undecided the decisions are", Markup(body))


def _rows(runs: Sequence[RunAnalysis], kind: Kind[ModuleEntropy]) -> list[dict[str, Any]]:
    """Of each run what holds over the model."""
    last = _over_model(runs[-1], kind.name)
    rows = []
    for run in runs:
        spread = _over_model(run, kind.name)
        if spread is None:
            continue
        cells = {"name": run.name, **_cells(spread), "difference": NONE, "of": run is runs[-1]}
        if last is not None and run is not runs[-1]:
            cells["difference"] = _difference(spread, last)
        rows.append(cells)
    return rows


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
    return NONE if mean.low is None else f"{mean.low:.3f} to {mean.high:.3f}"


def _difference(spread: EntropySpread, reference: EntropySpread) -> str:
    """The difference to the reference, unless other numbers of units make it meaningless."""
    if not math.isclose(spread.uniform, reference.uniform, rel_tol=1e-6):
        return NONE
    text = signed(spread.mean.value - reference.mean.value, 3)
    found = difference(spread.mean, reference.mean)
    if found is None:
        return text
    return f"{text} ({signed(found.low, 3)} to {signed(found.high, 3)})"


def _figures(
    runs: Sequence[RunAnalysis],
    looks: Mapping[str, Look],
    site: Site[ModuleEntropy],
    identity: str,
) -> list[tuple[str, Markup]]:
    """Entropy by layer, by position and by frequency, as far as the site has them."""
    bounds = sorted({round(m.spread.uniform, 6) for of in site.of_runs.values() for m in of})
    dashed = [(bound, f"uniform: ln {math.exp(bound):.0f} = {bound:.2f}") for bound in bounds]
    drawn = {
        "layer": ("by layer", "Layer", {n: _by_layer(of) for n, of in site.of_runs.items()}),
        "position": (
            "by position",
            "Position in the sequence",
            {
                n: _over_layers(
                    [{_range(a.first, a.last): a.mean.value for a in m.by_position} for m in of]
                )
                for n, of in site.of_runs.items()
            },
        ),
        "frequency": (
            "by frequency of the token",
            "Occurrences of the token",
            {
                n: _over_layers(
                    [{_range(a.fewest, a.most): a.mean for a in m.by_frequency} for m in of]
                )
                for n, of in site.of_runs.items()
            },
        ),
    }
    figures = []
    for name, (title, axis, points) in drawn.items():
        lines = [Banded(runs[n].name, looks[runs[n].name], of) for n, of in points.items() if of]
        if not lines:
            continue
        places = sorted({place for line in lines for place in line.points}, key=_first)
        svg = banded_lines(
            lines,
            places,
            dashed,
            (axis, "Entropy, nats"),
            f"{identity}-{name}",
            f"{site.title}, entropy {title}",
        )
        figures.append((f"{site.title}: {title}", Markup(svg)))
    return figures


def _by_layer(modules: Sequence[ModuleEntropy]) -> Points:
    return {
        str(module.where.layer): (
            module.spread.mean.value,
            module.spread.percentiles[PERCENTILES[0]],
            module.spread.percentiles[PERCENTILES[-1]],
        )
        for module in modules
    }


def _over_layers(values: Sequence[Mapping[str, float]]) -> Points:
    """Of each class the mean over the layers that have it, and the lowest and the highest."""
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
    """What the figures show, module by module."""
    return [
        {
            "run": runs[number].name,
            "place": site.title if module.where.site else module.where.path,
            "layer": module.where.layer,
            "decides": module.decides,
            **_cells(module.spread),
        }
        for site in kind.sites
        for number, of_run in site.of_runs.items()
        for module in of_run
    ]
