"""The section on what it costs a model to do without parts of its systems."""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from markupsafe import Markup

from headwise.analysis.ablations.results import AblationAnalysis, AblationResult, Change
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Figures, Looks
from headwise.report.figures import Dot, dots_by_row, layers_by_unit
from headwise.report.formatting import (
    NONE,
    SITES,
    bare_p_value,
    decimals,
    heading,
    in_words,
    place_name,
    signed,
    site_name,
)
from headwise.report.rendering import said
from headwise.report.svg import SURFACE, HeatCell, Look

_MOST_DRAWN = 24  # rows of a figure
_LOSS_DIGITS = 3
_LETTERS = 30  # of the name of a row


class Measure(NamedTuple):
    """A number that ablations change."""

    name: str  # within a sentence: BLEU, or nats per token
    digits: int  # number of decimals of differences
    # Its change under an ablation; None if it was not computed.
    change_of: Callable[[AblationResult], Change | None]


def ablation_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Returns what is shown; None if no run was ablated."""
    ablated = {run.name: run.ablations for run in runs if run.ablations is not None}
    if not ablated:
        return None
    return {
        "runs": [_of_run(name, found, looks[name]) for name, found in ablated.items()],
        "several": len(runs) > 1,
        "draws": max(result.draws for found in ablated.values() for result in found.results),
    }


def _of_run(name: str, found: AblationAnalysis, look: Look) -> dict[str, Any]:
    score, *losses = measures = measures_of(found)
    detectable = [r.score.detectable for r in found.results if r.score.detectable is not None]
    return {
        "name": name,
        "found": found,
        "finding": ablation_finding(found),
        "score": heading(found.score),
        "value": decimals(found.value, score.digits),
        "loss": "".join(decimals(found.loss, measure.digits) for measure in losses),
        "size": f"{found.items:,} {found.item_name}",
        "plots": [plot for measure in measures if (plot := _plot(found, measure, look))],
        "maps": _maps(found),
        "rows": [_row(result, found) for result in found.results],
        "detectable": f"{median(detectable):.{score.digits}f}" if detectable else "",
        "meanings": {
            f"{result.system} {result.ablation}": result.meaning for result in found.results
        },
    }


def _plot(found: AblationAnalysis, measure: Measure, look: Look) -> tuple[str, Markup] | None:
    """Title and figure of the differences of one number, the costliest first."""
    changed = [(result, measure.change_of(result)) for result in found.results]
    known = [(r, change) for r, change in changed if change and math.isfinite(change.cost)]
    known.sort(key=lambda pair: -pair[1].cost)
    if not known:
        return None
    several = several_systems(found)
    dots, said = [], []
    for result, change in known[:_MOST_DRAWN]:
        name, ends = in_short(result, several), None
        text = f"{name} {signed(change.difference, measure.digits)}"
        if change.low is not None and change.high is not None:
            ends = (change.low, change.high)
            text += f" ({_interval(change, measure.digits)})"
        short = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
        dots.append(Dot(short, change.difference, ends, look, change.significant))
        said.append(text)
    title = f"{heading(measure.name)}, the costliest ablations first, with 95% intervals"
    if len(known) > len(dots):
        title += f"; {len(known) - len(dots)} more are in the table"
    axis = f"{heading(measure.name)}, difference to the whole model"
    label = f"{axis}: {'; '.join(said)}."
    sizes = {"row_height": 20, "width": 470, "markersize": 7}
    return title, dots_by_row(dots, axis, label, zero=True, hollow=SURFACE, **sizes)


def _row(result: AblationResult, found: AblationAnalysis) -> dict[str, Any]:
    score, *losses = measures_of(found)
    return {
        "what": what_is_done(result, several_systems(found)),
        "value": decimals(result.score.value, score.digits),
        "score": _cell(result.score, score.digits),
        "loss": [_cell(result.loss, measure.digits) for measure in losses],
    }


def _cell(change: Change | None, digits: int) -> dict[str, Any]:
    """The cells of a difference in the table."""
    if change is None:
        return {"difference": NONE, "interval": "", "p": NONE, "significant": False}
    p = change.corrected_p_value
    return {
        "difference": signed(change.difference, digits),
        "interval": _interval(change, digits),
        "p": NONE if p is None else bare_p_value(p),
        "significant": change.significant,
    }


def _interval(change: Change, digits: int) -> str:
    ends = [signed(end, digits) for end in (change.low, change.high) if end is not None]
    return " to ".join(ends)


def _maps(found: AblationAnalysis) -> list[Figures]:
    """Of each site and kind of unit, title and figure of the costs, a figure for each number."""
    groups: dict[tuple[int, str, str, str, bool], list[AblationResult]] = {}
    order = list(SITES)
    for result in found.results:
        if result.unit is not None and result.where is not None:
            site = result.where.site
            at = order.index(site) if site in order else len(order)
            key = (at, site_name(result.where), result.system, result.unit, result.alone)
            groups.setdefault(key, []).append(result)
    maps = []
    for (_, site, system, unit, alone), results in sorted(groups.items()):
        named = f"{system}, " if several_systems(found) else ""
        done = f"one {unit} alone" if alone else f"without one {unit}"
        figures = []
        for measure in measures_of(found):
            title = f"{named}{site}: {done}, cost in {measure.name}"
            figures.append((title, _map(results, measure, unit, _scale(found, measure), title)))
        maps.append(figures)
    return maps


def _scale(found: AblationAnalysis, measure: Measure) -> float:
    """The cost at full colour: the largest one of a unit, so that sites can be compared."""
    changed = [measure.change_of(result) for result in found.results if result.unit]
    return max([0.0, *(c.cost for c in changed if c and math.isfinite(c.cost))]) or 1.0


def _map(
    results: Sequence[AblationResult], measure: Measure, unit: str, scale: float, title: str
) -> Markup:
    """Layers × units; the stronger a cell's colour, the more it costs to do without the unit.

    Cells of units that cost nothing, or less, have no colour. A frame is around significant ones.
    """
    costs: dict[int, dict[int, float]] = {}
    layers: dict[int, dict[int, HeatCell]] = {}
    for result in results:
        change = measure.change_of(result)
        assert result.where is not None and result.number is not None and change is not None
        layer, cost = result.where.layer, change.cost
        text = signed(cost, measure.digits).removeprefix("+")
        strength = cost / scale if math.isfinite(cost) else 0.0
        cell = HeatCell(strength, text, framed=change.significant)
        layers.setdefault(layer, {})[result.number] = cell
        if math.isfinite(cost):
            costs.setdefault(layer, {})[result.number] = cost
    said = []
    for layer, of_units in sorted(costs.items()):
        costliest = max(of_units, key=of_units.__getitem__)
        most = signed(of_units[costliest], measure.digits)
        said.append(f"layer {layer}: most for {unit} {costliest}, {most}")
    return layers_by_unit(layers, unit, f"{title}: {'; '.join(said)}.", fontsize=10)


def measures_of(found: AblationAnalysis) -> list[Measure]:
    """Returns the score, and the loss if it was computed."""
    score = Measure(in_words(found.score), found.digits + 1, lambda result: result.score)
    if found.loss is None:
        return [score]
    return [score, Measure(found.loss_name, _LOSS_DIGITS, lambda result: result.loss)]


def what_is_done(result: AblationResult, several_systems: bool = False) -> str:
    """Returns what an ablation changes, and where."""
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
    scores = [result.score for result in found.results if result.score.p_value is not None]
    losses = [result.loss for result in found.results if result.loss is not None]
    has_losses = any(loss.p_value is not None for loss in losses)
    return said(
        "of_ablations",
        found=found,
        judged=len(scores),
        score=_significant(scores),
        loss=_significant(losses) if has_losses else None,
        costliest=costliest(found),
    )


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
