"""The section on how alike heads are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Section, legend
from headwise.report.formatting import NONE, decimals
from headwise.report.place_names import SITES, place_name
from headwise.report.rendering import rendered
from headwise.report.svg import (
    HEAT,
    HEAT_OPACITY,
    MUTED,
    Look,
    are_numbered,
    drawing,
    frame_cells,
    number_units,
    panel,
    to_svg,
)

IDENTITY = "likeness"
MEASURES = {"outputs": "what heads say", "attention": "what heads look at"}
_SHADES = 24  # cells of one shade are one element, so that many heads make no large page


def likeness_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section, or None if no run has attentions of several heads."""
    having = [run for run in runs if run.likeness is not None]
    if not having:
        return None
    found = [(run.name, each) for run in having if run.likeness for each in run.likeness.systems]
    body = rendered(
        "analysis_page/likeness.html.jinja",
        means=[{"run": name, "likeness": system} for name, system in found],
        several_systems=len({system.system for _, system in found}) > 1,
        legend=legend(having, looks, IDENTITY),
        panels=_panels(having, looks),
        details=[(run.name, _details(run, number)) for number, run in enumerate(having)],
    )
    return Section(IDENTITY, "How alike the heads are", body)


def _panels(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """Title and figure for each site and measure."""
    modules = [module for run in runs if run.likeness for module in run.likeness.modules]
    panels = []
    for number, site in enumerate(dict.fromkeys(module.where.site for module in modules)):
        for measure, meaning in MEASURES.items():
            lines = {}
            for run in runs:
                points = [
                    (module.where.layer, value)
                    for module in (run.likeness.modules if run.likeness else [])
                    if module.where.site == site
                    and (value := getattr(module, f"mean_{measure}")) is not None
                ]
                if points:
                    lines[run.name] = sorted(points)
            title = f"{SITES.get(site, 'Attention')}: {meaning}"
            if lines:
                identity = f"{IDENTITY}-{measure}-{number}"
                panels.append((title, likeness_by_layer(lines, looks, identity, title)))
    return panels


def _details(run: RunAnalysis, number: int) -> list[dict[str, Any]]:
    """Each attention of a run, with its most alike pairs and its matrices drawn."""
    details = []
    for index, module in enumerate(run.likeness.modules if run.likeness else []):
        pairs = {measure: getattr(module, f"most_alike_{measure}") for measure in MEASURES}
        alike = {
            measure: NONE if pair is None else _pair(pair, getattr(module, measure))
            for measure, pair in pairs.items()
        }
        place = place_name(module.where)
        label = f"{place}, {len(module.outputs)} {module.unit}s, most alike: " + "; ".join(
            f"in {MEASURES[measure]} {pair}" for measure, pair in alike.items()
        )
        identity = f"{IDENTITY}-matrix-{number}-{index}"
        svg = likeness_matrix(module.outputs, module.attention, identity, label)
        details.append({"place": place, "likeness": module, "alike": alike, "matrix": svg})
    return details


def _pair(pair: tuple[int, int], matrix: Sequence[Sequence[float | None]]) -> str:
    first, second = pair
    return f"{first} and {second} ({decimals(matrix[first][second])})"


Matrix = Sequence[Sequence[float | None]]


def likeness_by_layer(
    lines: Mapping[str, Sequence[tuple[int, float]]],
    looks: Mapping[str, Look],
    identity: str,
    label: str,
) -> Markup:
    """A mean likeness over layers, a line for each run."""
    with drawing(identity):
        figure, axes = panel(210)
        for name, points in lines.items():
            look = looks[name]
            layers, values = [layer for layer, _ in points], [value for _, value in points]
            axes.plot(layers, values, markersize=7, **look.line)
        found = [value for points in lines.values() for _, value in points]
        axes.set_ylim(min([-0.03, *(1.1 * value for value in found)]), 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.set_xlabel("Layer")
        said = "; ".join(
            f"{name} {', '.join(f'layer {layer} {value:.2f}' for layer, value in points)}"
            for name, points in lines.items()
        )
        return to_svg(figure, identity, f"{label}: {said}.")


def likeness_matrix(outputs: Matrix, attention: Matrix, identity: str, label: str) -> Markup:
    """Heads × heads: outputs below the diagonal, attention above; the stronger, the more alike."""
    heads = len(outputs)
    below = np.tril(np.ones((heads, heads), dtype=bool), -1)
    both = np.where(below, _numbers(outputs), _numbers(attention))
    np.fill_diagonal(both, np.nan)
    shades = np.round(np.nan_to_num(both.clip(0.0, 1.0)) * _SHADES).astype(int)
    with drawing(identity):
        figure, axes = panel(300, width=300)
        axes.set_aspect("equal")
        for shade in range(1, _SHADES + 1):
            places = np.argwhere(shades == shade).tolist()
            if places:
                cells = Path.make_compound_path(*(_cell(row, column) for row, column in places))
                opacity = HEAT_OPACITY * shade / _SHADES
                axes.add_patch(PathPatch(cells, facecolor=HEAT, alpha=opacity, linewidth=0))
        axes.plot([-0.5, heads - 0.5], [-0.5, heads - 0.5], color=MUTED, linewidth=1)
        if are_numbered(heads):
            for row, column in np.argwhere(~np.eye(heads, dtype=bool)):
                value = both[row, column]
                text = "–" if np.isnan(value) else f"{abs(value):.2f}".removeprefix("0")
                text = f"−{text}" if value <= -0.005 else text
                axes.text(column, row, text, ha="center", va="center", fontsize=10)
        number_units(axes.xaxis, heads)
        number_units(axes.yaxis, heads)
        frame_cells(axes, heads, heads)
        return to_svg(figure, identity, label)


def _cell(row: int, column: int) -> Path:
    left, right, top, bottom = column - 0.48, column + 0.48, row - 0.48, row + 0.48
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return Path(corners, closed=True)


def _numbers(matrix: Matrix) -> np.ndarray:
    return np.array([[np.nan if v is None else v for v in row] for row in matrix], dtype=float)
