"""The section on what it costs a model to do without parts of its systems."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from headwise.analysis.behaviour.ablation_results import AblationAnalysis, AblationResult, Change
from headwise.analysis.behaviour.page.section import Section
from headwise.analysis.behaviour.results import RunAnalysis
from headwise.analysis.figures.ablations import (
    Cell,
    Dot,
    cost_by_unit,
    cost_scale,
    differences_by_ablation,
)
from headwise.analysis.figures.heads import HEAT_OPACITY, site_name
from headwise.analysis.figures.looks import Look
from headwise.analysis.formatting import NONE, heading, in_words, p_value, signed
from headwise.analysis.rendering import rendered

IDENTITY = "ablations"
_MOST_DRAWN = 24  # rows of the figure
_LOSS_DIGITS = 3


def ablation_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Returns the section; None if no run was ablated.

    Args:
        runs: side by side.
        looks: of the runs, by name.
    """
    found = [
        _of_run(run, run.ablations, looks[run.name], f"{IDENTITY}-{number}")
        for number, run in enumerate(runs)
        if run.ablations is not None
    ]
    if not found:
        return None
    body = rendered(
        "behaviour/page/ablation.html.jinja",
        runs=found,
        several=len(runs) > 1,
        draws=max(
            (r.draws for run in runs if run.ablations for r in run.ablations.results), default=0
        ),
        heat_opacity=HEAT_OPACITY,
        most=_MOST_DRAWN,
    )
    return Section(IDENTITY, "What each part is worth", Markup(body))


def ablation_finding(found: AblationAnalysis) -> str:
    """What the ablations of a model come to, in a sentence or two."""
    score, first = in_words(found.score), found.results[0]
    judged = [result.score for result in found.results if result.score.p_value is not None]
    text = f"No ablation can be judged by so few {found.item_name}."
    if judged:
        worse, better = _significant(judged)
        text = (
            f"{worse or 'None'} of {len(judged)} ablations {_make(worse)} {score} worse by more "
            f"than the chance of the {found.item_name}, {better or 'none'} better."
        )
    losses = [result.loss for result in found.results if result.loss is not None]
    if any(loss.p_value is not None for loss in losses):
        worse, better = _significant(losses)
        text += f" The loss is worse under {worse or 'none'} of them and better under "
        text += f"{better or 'none'}."
    if first.score.cost > 0:
        change = signed(first.score.difference, found.digits + 1)
        what = what_is_done(first, _several_systems(found))
        text += f" The costliest in {score}: {what} ({change})."
    return text


def _significant(changes: Sequence[Change]) -> tuple[int, int]:
    """How many changes are for the worse and for the better by more than chance."""
    costs = [change.cost for change in changes if change.significant]
    return sum(cost > 0 for cost in costs), sum(cost < 0 for cost in costs)


def _make(number: int) -> str:
    return "make" if number > 1 else "makes"


def what_is_done(result: AblationResult, several_systems: bool = False) -> str:
    """What an ablation changes, and where.

    Args:
        result: the ablation.
        several_systems: the model has several kinds of systems, so that its name is needed.
    """
    if result.unit is None:
        options = "".join(f", {name} = {value}" for name, value in result.options.items())
        named = f"{result.system} " if several_systems else ""
        return f"{named}{result.ablation}{options}"
    unit = f"{result.unit} {result.number}"
    return f"{f'{unit} alone' if result.alone else f'without {unit}'}, {_place(result)}"


def _place(result: AblationResult) -> str:
    where = result.where
    if where is None:
        return "all layers"
    if not where.site:
        return where.path or "the model"
    return f"{in_words(site_name(where))}, layer {where.layer}"


def _several_systems(found: AblationAnalysis) -> bool:
    return len({result.system for result in found.results}) > 1


def _of_run(run: RunAnalysis, found: AblationAnalysis, look: Look, identity: str) -> dict[str, Any]:
    several = _several_systems(found)
    digits = found.digits + 1
    axis = f"{heading(found.score)}, difference to the whole model"
    drawn = [r for r in found.results if math.isfinite(r.score.difference)][:_MOST_DRAWN]
    dots = [
        Dot(
            what_is_done(r, several),
            r.score.difference,
            r.score.low,
            r.score.high,
            r.score.significant,
        )
        for r in drawn
    ]
    detectable = [r.score.detectable for r in found.results if r.score.detectable is not None]
    return {
        "name": run.name,
        "finding": ablation_finding(found),
        "score": heading(found.score),
        "value": f"{found.value:.{digits}f}",
        "loss_name": found.loss_name,
        "loss": NONE if found.loss is None else f"{found.loss:.{_LOSS_DIGITS}f}",
        "size": f"{found.items:,} {found.item_name}",
        "better": "higher" if found.higher_is_better else "lower",
        "left_out": len(found.results) - len(drawn),
        "plot": Markup(differences_by_ablation(dots, look, axis, digits, f"{identity}-differences"))
        if dots
        else "",
        "maps": _maps(found, identity),
        "rows": [_row(result, several, found) for result in found.results],
        "detectable": f"{sorted(detectable)[len(detectable) // 2]:.{digits}f}"
        if detectable
        else "",
        "meanings": {
            f"{result.system} {result.ablation}": result.meaning for result in found.results
        },
    }


def _row(result: AblationResult, several: bool, found: AblationAnalysis) -> dict[str, Any]:
    score, loss = result.score, result.loss
    return {
        "what": what_is_done(result, several),
        "value": f"{score.value:.{found.digits + 1}f}",
        "difference": signed(score.difference, found.digits + 1),
        "interval": _interval(score, found.digits + 1),
        "p": NONE if score.corrected_p_value is None else _p(score.corrected_p_value),
        "significant": score.significant,
        "loss": NONE if loss is None else signed(loss.difference, _LOSS_DIGITS),
        "loss_interval": "" if loss is None else _interval(loss, _LOSS_DIGITS),
        "loss_significant": loss is not None and loss.significant,
    }


def _p(value: float) -> str:
    return p_value(value).removeprefix("p ").removeprefix("= ")


def _interval(change: Change, digits: int) -> str:
    if change.low is None or change.high is None:
        return ""
    return f"{signed(change.low, digits)} to {signed(change.high, digits)}"


def _maps(found: AblationAnalysis, identity: str) -> list[tuple[str, Markup]]:
    """Of each site and kind of unit, the costs by layer and unit."""
    groups: dict[tuple[str, str, str, bool], list[AblationResult]] = {}
    for result in found.results:
        if result.unit is not None and result.where is not None:
            key = (result.system, site_name(result.where), result.unit, result.alone)
            groups.setdefault(key, []).append(result)
    measures: list[tuple[str, int, Callable[[AblationResult], Change | None]]] = [
        (f"cost in {in_words(found.score)}", found.digits, lambda result: result.score)
    ]
    if found.loss is not None:
        measures.append((f"cost in {found.loss_name}", 2, lambda result: result.loss))
    figures = []
    for number, ((system, site, unit, alone), results) in enumerate(sorted(groups.items())):
        for at, (cost, digits, change_of) in enumerate(measures):
            cells: dict[int, dict[int, Cell]] = {}
            for result in results:
                change = change_of(result)
                assert result.where is not None and result.number is not None
                if change is not None:
                    row = cells.setdefault(result.where.layer, {})
                    row[result.number] = Cell(change.cost, change.significant)
            everything = [cell for row in cells.values() for cell in row.values()]
            named = f"{system}, " if _several_systems(found) else ""
            done = f"one {unit} alone" if alone else f"without one {unit}"
            title = f"{named}{site}: {done}, {cost}"
            svg = cost_by_unit(
                cells, unit, cost_scale(everything), digits, title, f"{identity}-map-{number}-{at}"
            )
            figures.append((title, Markup(svg)))
    return figures
