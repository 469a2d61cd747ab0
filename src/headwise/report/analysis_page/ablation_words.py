"""Ablations in words: what each does, and what all of them come to."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headwise.analysis.ablations.results import AblationAnalysis, AblationResult, Change
from headwise.report.formatting import in_words, signed
from headwise.report.place_names import SITES, place_name

_LOSS_DIGITS = 3


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
