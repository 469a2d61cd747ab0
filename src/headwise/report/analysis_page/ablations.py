"""The section on what it costs a model to do without parts of its systems."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from headwise.analysis.ablations.results import AblationAnalysis, AblationResult, Change
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Section
from headwise.report.formatting import NONE, heading, in_words, p_value, signed
from headwise.report.place_names import SITES, place_name, site_name
from headwise.report.rendering import rendered
from headwise.report.svg import (
    HEAT,
    HEAT_OPACITY,
    MUTED,
    SURFACE,
    TEXT,
    Look,
    divide_cells,
    drawing,
    frame_cells,
    panel,
    to_svg,
)

IDENTITY = "ablations"
_MOST_DRAWN = 24  # rows of a figure
_LOSS_DIGITS = 3
_LETTERS = 30  # of the name of a row
_WIDTH = 470
_MOST_NUMBERED = 10  # units whose cells have room for a number


class Measure(NamedTuple):
    """A number that ablations change.

    Attributes:
        name: within a sentence: BLEU, or nats per token.
        digits: number of decimals of differences.
        change_of: its change under an ablation; None if it was not computed.
    """

    name: str
    digits: int
    change_of: Callable[[AblationResult], Change | None]


class Dot(NamedTuple):
    """A row of the plot of differences."""

    name: str
    difference: float
    low: float | None
    high: float | None
    significant: bool


class Cell(NamedTuple):
    """What it costs to do without one unit of one layer."""

    cost: float
    significant: bool


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
        "analysis_page/ablations.html.jinja",
        runs=[_of_run(name, found, looks[name], identity) for name, found, identity in ablated],
        several=len(runs) > 1,
        draws=max(result.draws for _, found, _ in ablated for result in found.results),
        heat_opacity=HEAT_OPACITY,
    )
    return Section(IDENTITY, "What each part is worth", body)


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
    svg = differences_by_ablation(dots, look, axis, measure.digits, identity) if dots else Markup()
    return title, svg


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
            figures.append((title, svg))
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


def measures_of(found: AblationAnalysis) -> list[Measure]:
    """Returns the score, and the loss if it was computed."""
    score = Measure(in_words(found.score), found.digits + 1, lambda result: result.score)
    if found.loss is None:
        return [score]
    return [score, Measure(found.loss_name, _LOSS_DIGITS, lambda result: result.loss)]


def what_is_done(result: AblationResult, several_systems: bool = False) -> str:
    """Returns what an ablation changes, and where.

    Args:
        result: the ablation.
        several_systems: the model has several kinds of systems, so that their names are needed.
    """
    if result.unit is None:
        return _of_all(result, several_systems)
    unit = f"{result.unit} {result.number}"
    return f"{f'{unit} alone' if result.alone else f'without {unit}'}, {_place(result)}"


def in_short(result: AblationResult, several_systems: bool = False) -> str:
    """Returns the same in the few words that a figure has room for."""
    if result.unit is None or result.where is None:
        return _of_all(result, several_systems)
    place, site = result.where, SITES.get(result.where.site, "")
    at = place.path or "model"
    if site:
        at = f"{site.removesuffix('-attention').lower()} {place.layer}"
    return f"{at}: {f'only {result.unit}' if result.alone else result.unit} {result.number}"


def several_systems(found: AblationAnalysis) -> bool:
    """Whether the ablations are of several kinds of systems."""
    return len({result.system for result in found.results}) > 1


def ablation_finding(found: AblationAnalysis) -> str:
    """Returns what the ablations of a model come to, in a few sentences."""
    judged = [result.score for result in found.results if result.score.p_value is not None]
    text = f"No ablation can be judged by so few {found.item_name}."
    if judged:
        worse, better = _significant(judged)
        text = (
            f"{worse or 'None'} of {len(judged)} ablations {'make' if worse > 1 else 'makes'} "
            f"{in_words(found.score)} worse by more than the chance of the {found.item_name}, "
            f"{better or 'none'} better."
        )
    losses = [result.loss for result in found.results if result.loss is not None]
    if any(loss.p_value is not None for loss in losses):
        worse, better = _significant(losses)
        text += f" The loss is worse under {worse or 'none'} of them and better under "
        text += f"{better or 'none'}."
    first = costliest(found)
    return f"{text} The costliest: {first}." if first else text


def costliest(found: AblationAnalysis) -> str:
    """Returns the costliest ablation, and what it costs; empty if none costs anything.

    It is the costliest by the score, unless that may be chance and the loss says more.
    """
    told = []
    for measure in measures_of(found):
        changed = [(result, measure.change_of(result)) for result in found.results]
        costs = [(result, change) for result, change in changed if change and change.cost > 0]
        if costs:
            result, change = max(costs, key=lambda pair: pair[1].cost)
            chance = "" if change.significant else ", which may be chance"
            what = what_is_done(result, several_systems(found))
            difference = signed(change.difference, measure.digits)
            told.append((change.significant, f"{what} ({measure.name} {difference}{chance})"))
    # The first of those that are more than chance, or else the first.
    return max(told, key=lambda pair: pair[0])[1] if told else ""


def _of_all(result: AblationResult, several: bool) -> str:
    options = "".join(f", {name} = {value}" for name, value in result.options.items())
    return f"{f'{result.system} ' if several else ''}{result.ablation}{options}"


def _place(result: AblationResult) -> str:
    if result.where is None:
        return "the model"
    name = place_name(result.where)
    return in_words(name) if result.where.site else name


def _significant(changes: Sequence[Change]) -> tuple[int, int]:
    """How many changes are for the worse and for the better by more than chance."""
    costs = [change.cost for change in changes if change.significant]
    return sum(cost > 0 for cost in costs), sum(cost < 0 for cost in costs)


def differences_by_ablation(
    dots: Sequence[Dot], look: Look, axis: str, digits: int, identity: str
) -> Markup:
    """The difference of each ablation with its 95% interval, and zero; filled if significant.

    Args:
        dots: a row each, from top to bottom.
        look: of the run.
        axis: what the differences are of.
        digits: number of decimals for screen readers.
        identity: unique in the page.
    """
    names = [name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…" for name, *_ in dots]
    said = []
    with drawing(identity):
        figure, axes = panel(46 + 20 * len(dots), _WIDTH)
        axes.axvline(0, color=MUTED, linewidth=1.2)
        for row, dot in enumerate(dots):
            text = f"{dot.name} {signed(dot.difference, digits)}"
            if dot.low is not None and dot.high is not None:
                axes.plot((dot.low, dot.high), [row, row], color=look.colour, marker="|")
                text += f" ({signed(dot.low, digits)} to {signed(dot.high, digits)})"
            face = look.colour if dot.significant else SURFACE
            axes.plot(
                dot.difference,
                row,
                marker=look.marker,
                markersize=7,
                color=look.colour,
                markerfacecolor=face,
            )
            said.append(text)
        axes.set_yticks(range(len(dots)), names)
        axes.tick_params(axis="y", length=0, labelcolor=TEXT)
        axes.set_ylim(len(dots) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(axis)
        return to_svg(figure, identity, f"{axis}: {'; '.join(said)}.")


def cost_scale(costs: Sequence[float]) -> float:
    """The cost at full colour: the largest one."""
    return max([0.0, *filter(math.isfinite, costs)]) or 1.0


def cost_by_unit(
    layers: Mapping[int, Mapping[int, Cell]],
    unit: str,
    scale: float,
    digits: int,
    title: str,
    identity: str,
) -> Markup:
    """Layers × units; the stronger a cell's colour, the more it costs to do without the unit.

    Cells of units that cost nothing, or less, have no colour. A frame is around significant ones.

    Args:
        layers: the layer to the number of each unit, and its cell.
        unit: what is removed, for the axis.
        scale: the cost at full colour, the same for all sites, so that these can be compared.
        digits: number of decimals.
        title: of the figure, for screen readers.
        identity: unique in the page.
    """
    units = 1 + max(number for cells in layers.values() for number in cells)
    said = []
    with drawing(identity):
        figure, axes = panel(52 + 26 * len(layers))
        divide_cells(axes, len(layers), units)
        for row, (layer, cells) in enumerate(sorted(layers.items())):
            for number, cell in cells.items():
                cost = cell.cost if math.isfinite(cell.cost) else 0.0
                opacity = HEAT_OPACITY * min(1.0, max(0.0, cost / scale))
                box = Rectangle((number - 0.5, row - 0.5), 1, 1, alpha=opacity, facecolor=HEAT)
                axes.add_patch(box)
                if cell.significant:
                    corner = (number - 0.44, row - 0.42)
                    frame = Rectangle(corner, 0.88, 0.84, fill=False, edgecolor=TEXT, linewidth=1.1)
                    axes.add_patch(frame)
                if units <= _MOST_NUMBERED:
                    text = signed(cell.cost, digits).removeprefix("+")
                    axes.text(number, row, text, ha="center", va="center", fontsize=10)
            costliest = max(cells, key=lambda number: cells[number].cost)
            most = signed(cells[costliest].cost, digits)
            said.append(f"layer {layer}: most for {unit} {costliest}, {most}")
        frame_cells(axes, len(layers), units)
        axes.set_yticks(range(len(layers)), [str(layer) for layer in sorted(layers)])
        if units > _MOST_NUMBERED:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        else:
            axes.set_xticks(range(units))
        axes.set_xlabel(unit.capitalize())
        axes.set_ylabel("Layer")
        return to_svg(figure, identity, f"{title}: {'; '.join(said)}.")
