"""The section on what it costs a model to do without parts of its systems."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from markupsafe import Markup

from headwise.analysis.ablations.results import AblationAnalysis, AblationResult, Change
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.ablation_words import (
    Measure,
    ablation_finding,
    in_short,
    measures_of,
    several_systems,
    what_is_done,
)
from headwise.report.analysis_page.section import Section
from headwise.report.figures.ablations import (
    Cell,
    Dot,
    cost_by_unit,
    cost_scale,
    differences_by_ablation,
)
from headwise.report.figures.cells import HEAT_OPACITY
from headwise.report.figures.looks import Look
from headwise.report.formatting import NONE, heading, p_value, signed
from headwise.report.place_names import SITES, site_name
from headwise.report.rendering import rendered

IDENTITY = "ablations"
_MOST_DRAWN = 24  # rows of a figure


def ablation_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section; None if no run was ablated.

    Args:
        runs: side by side.
        looks: of the runs, by name.
    """
    ablated = [
        (run.name, run.ablations, f"{IDENTITY}-{number}")
        for number, run in enumerate(runs)
        if run.ablations is not None
    ]
    if not ablated:
        return None
    body = rendered(
        "analysis_page/ablation.html.jinja",
        runs=[_of_run(name, found, looks[name], identity) for name, found, identity in ablated],
        several=len(runs) > 1,
        draws=max(result.draws for _, found, _ in ablated for result in found.results),
        heat_opacity=HEAT_OPACITY,
    )
    return Section(IDENTITY, "What each part is worth", Markup(body))


def _of_run(name: str, found: AblationAnalysis, look: Look, identity: str) -> dict[str, Any]:
    score, *losses = measures = measures_of(found)
    detectable = [r.score.detectable for r in found.results if r.score.detectable is not None]
    return {
        "name": name,
        "finding": ablation_finding(found),
        "score": heading(found.score),
        "value": f"{found.value:.{score.digits}f}",
        "loss_name": found.loss_name,
        "loss": "".join(f"{found.loss:.{measure.digits}f}" for measure in losses),
        "size": f"{found.items:,} {found.item_name}",
        "better": "higher" if found.higher_is_better else "lower",
        "plots": [
            _plot(found, measure, look, f"{identity}-differences-{number}")
            for number, measure in enumerate(measures)
        ],
        "maps": _maps(found, identity),
        "rows": [_row(result, found) for result in found.results],
        "detectable": f"{median(detectable):.{score.digits}f}" if detectable else "",
        "meanings": {
            f"{result.system} {result.ablation}": result.meaning for result in found.results
        },
    }


def _plot(
    found: AblationAnalysis, measure: Measure, look: Look, identity: str
) -> tuple[str, Markup]:
    """Title and figure of the differences of one number, the costliest first."""
    changed = [(result, measure.change_of(result)) for result in found.results]
    known = [(r, change) for r, change in changed if change and math.isfinite(change.cost)]
    known.sort(key=lambda pair: -pair[1].cost)
    several = several_systems(found)
    dots = [
        Dot(in_short(r, several), change.difference, change.low, change.high, change.significant)
        for r, change in known[:_MOST_DRAWN]
    ]
    title = f"{heading(measure.name)}, the costliest ablations first, with 95% intervals"
    if len(known) > len(dots):
        title += f"; {len(known) - len(dots)} more are in the table"
    axis = f"{heading(measure.name)}, difference to the whole model"
    svg = differences_by_ablation(dots, look, axis, measure.digits, identity) if dots else ""
    return title, Markup(svg)


def _row(result: AblationResult, found: AblationAnalysis) -> dict[str, Any]:
    score, *losses = measures_of(found)
    return {
        "what": what_is_done(result, several_systems(found)),
        "value": f"{result.score.value:.{score.digits}f}",
        "score": _cell(result.score, score.digits),
        "loss": [_cell(result.loss, measure.digits) for measure in losses],
    }


def _cell(change: Change | None, digits: int) -> dict[str, Any]:
    """The cells of a difference in the table."""
    if change is None:
        return {"difference": NONE, "interval": "", "p": NONE, "significant": False}
    ends = [signed(end, digits) for end in (change.low, change.high) if end is not None]
    p = change.corrected_p_value
    return {
        "difference": signed(change.difference, digits),
        "interval": " to ".join(ends),
        "p": NONE if p is None else p_value(p).removeprefix("p ").removeprefix("= "),
        "significant": change.significant,
    }


def _maps(found: AblationAnalysis, identity: str) -> list[list[tuple[str, Markup]]]:
    """Of each site and kind of unit, title and figure of the costs, a figure for each number."""
    groups: dict[tuple[int, str, str, str, bool], list[AblationResult]] = {}
    order = list(SITES)
    for result in found.results:
        if result.unit is not None and result.where is not None:
            site = result.where.site
            at = order.index(site) if site in order else len(order)
            key = (at, site_name(result.where), result.system, result.unit, result.alone)
            groups.setdefault(key, []).append(result)
    scales = [
        cost_scale([change.cost for r in found.results if r.unit and (change := m.change_of(r))])
        for m in measures_of(found)
    ]
    maps = []
    for number, ((_, site, system, unit, alone), results) in enumerate(sorted(groups.items())):
        named = f"{system}, " if several_systems(found) else ""
        done = f"one {unit} alone" if alone else f"without one {unit}"
        figures = []
        for at, (measure, scale) in enumerate(zip(measures_of(found), scales, strict=True)):
            title = f"{named}{site}: {done}, cost in {measure.name}"
            layers = _cells(results, measure)
            name = f"{identity}-map-{number}-{at}"
            svg = cost_by_unit(layers, unit, scale, measure.digits, title, name)
            figures.append((title, Markup(svg)))
        maps.append(figures)
    return maps


def _cells(results: Sequence[AblationResult], measure: Measure) -> dict[int, dict[int, Cell]]:
    layers: dict[int, dict[int, Cell]] = {}
    for result in results:
        change = measure.change_of(result)
        assert result.where is not None and result.number is not None and change is not None
        row = layers.setdefault(result.where.layer, {})
        row[result.number] = Cell(change.cost, change.significant)
    return layers
