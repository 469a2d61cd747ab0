"""What an analysis found, in sentences, and the words in which pages speak of models."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from headwise.analysis.decided import Decided
from headwise.analysis.questions import explained, load
from headwise.analysis.statistics import SIGNIFICANT
from headwise.report.page import interval, number

SITES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "decoder_cross": "cross-attention",
}
# What an ablation of all systems of a kind does.
_DOES = {
    "uniform": "all {units} weigh alike",
    "random": "the {units} have random weights",
    "largest": "only the {unit} of largest weight counts",
    "without-largest": "the {unit} of largest weight is left out",
    "top-k": "only {top_k} of the {units}, by weight",
}


def findings(decided: Sequence[Decided], ablations: pd.DataFrame | None) -> list[str]:
    """Says in sentences what was found of one model; those on the whole score come first."""
    if ablations is None and not decided:
        return ["Its attention decides nothing: ablations alone say what its heads are worth."]
    of_score = [] if ablations is None else [*_of_parts(ablations), *_of_weights(ablations)]
    return [*of_score, *_of_work(decided), *_of_label(decided)]


def _of_parts(table: pd.DataFrame) -> Iterator[str]:
    """Says which part is worth most, and how many are worth nothing."""
    units = table[[removed(row) is not None for row in table.itertuples()]].dropna(subset="cost")
    if units.empty:
        return
    best, last = units.iloc[0], units.iloc[-1]
    names = " and ".join(plural(unit) for unit in dict.fromkeys(units["unit"]))
    needed = int(((units["corrected_p"] < SIGNIFICANT) & (units["cost"] > 0)).sum())
    if not needed and units["p"].notna().any():
        yield (
            f"None of the {len(units):,} {names}, removed one at a time, is shown to be needed by "
            f"these {table.attrs['items']:,} items, which does not mean that it can be removed. "
            f"The largest loss is that without {part(best)}: {_loss(table, best)}."
        )
        return
    if best.cost > 0:
        yield f"Worth most is {part(best)}: without it, {_loss(table, best)}."
    if units["p"].isna().all():
        yield f"Which parts may be removed cannot be said: {best.why}."
        return
    yield (
        f"Of the {len(units):,} {names}, {len(units) - needed:,} can be removed one at a time "
        f"without a loss that is more than chance. The cheapest is {part(last)}: without it, "
        f"{_loss(table, last)}."
    )


def _of_weights(table: pd.DataFrame) -> Iterator[str]:
    """Says what the learned weights are worth."""
    for row in table[table["ablation"] == "uniform"].itertuples():
        yield f"If {part(row)} in place of what was learned, {_loss(table, row)}."


def _loss(table: pd.DataFrame, row: Any) -> str:
    """Says what an ablation costs, as a share of the whole score."""
    digits = table.attrs["digits"] + 1
    whole = f"the {table.attrs['score']} of {number(table.attrs['value'], digits)}"
    within = interval(row.low, row.high, digits, before=" ", sign=True)
    chance = "" if row.corrected_p < SIGNIFICANT else f", which may be chance{within}"
    if not row.share > 0:  # nothing is lost, or the whole score is no share of anything
        return f"{whole} changes by {number(row.difference, digits, sign=True)}{chance}"
    if table.attrs["lower_is_better"]:
        return f"{whole} rises by {percent(row.share)}{chance}"
    return f"{percent(row.share)} of {whole} is lost{chance}"


def _of_work(decided: Sequence[Decided]) -> Iterator[str]:
    """Says how evenly the work is shared."""
    for unit, of in by_unit(decided).items():
        multiples = pd.concat([load(d) * d.weights.shape[1] for d in of])
        yield (
            f"Of all layers, the busiest {unit} does {number(multiples.max(), 1)} times an even "
            f"share of the work, and the least busy {number(multiples.min(), 1)} times."
        )


def _of_label(decided: Sequence[Decided]) -> Iterator[str]:
    """Says what the decisions depend on most."""
    known = [(share, label, d) for d in decided for label, share in explained_by(d).items()]
    if known:
        share, label, d = max(known, key=lambda each: each[0])
        yield (
            f"The {label} alone explains up to {percent(share)} of the variance of the weights "
            f"({where(d.place)})."
        )


# --- words ------------------------------------------------------------------------------------


def where(place: str) -> str:
    """Writes a place in words.

    >>> where("decoder_cross.1"), where("blocks.3.attention")
    ('cross-attention, layer 1', 'blocks.3.attention')
    """
    site, _, layer = place.rpartition(".")
    return f"{SITES[site]}, layer {layer}" if site in SITES else place


def plural(unit: str) -> str:
    """Writes the plural of a unit.

    >>> plural("branch"), plural("head")
    ('branches', 'heads')
    """
    return f"{unit}{'es' if unit.endswith(('s', 'x', 'z', 'ch', 'sh')) else 's'}"


def part(row: Any) -> str:
    """Says in words what an ablation, a row of the table, removes or changes."""
    if removed(row) is not None:
        return f"{row.unit} {removed(row)} ({where(row.place)})"
    words = _DOES.get(row.ablation, row.ablation)
    return str(words).format(unit=row.unit, units=plural(row.unit), **row.options)


def removed(row: Any) -> int | None:
    """Returns the number of the unit that an ablation removes; None if it changes a whole kind."""
    number_of_unit: int | None = row.options.get(row.unit)
    return number_of_unit


def percent(share: float) -> str:
    return f"{number(100 * share, 1 if abs(share) < 0.095 else 0)}%"


def by_unit(decided: Sequence[Decided]) -> dict[str, list[Decided]]:
    """Groups the systems that have several units by what these are."""
    found: dict[str, list[Decided]] = {}
    for d in decided:
        if d.weights.shape[1] > 1:
            found.setdefault(d.unit, []).append(d)
    return found


def explained_by(d: Decided) -> dict[str, float]:
    """Computes how much of the decisions each label explains."""
    found = {label: explained(d, label) for label in d.labels}
    return {label: share for label, share in found.items() if share == share}
