"""Changes the width of a model until it has a given number of parameters.

So systems can be compared at one size. Lamb et al. 2021, *Transformers with Competitive Ensembles
of Independent Mechanisms*, https://arxiv.org/abs/2103.00336, compare in this way: they raise the
hidden size of their own model, usually by about a fifth, until it has the parameters of the
standard one. The number of heads grows with it there, from 8 to 10 and from 12 to 16.
"""

from collections.abc import Callable
from typing import NamedTuple

from headwise.recipes.settings import ModelSettings

TOLERANCE = 0.005  # largest relative difference in the number of parameters


class Match(NamedTuple):
    """The settings that were found for a model."""

    # The settings with the new `embed_dim` and `ffn_dim`, and perhaps `num_heads`.
    model: ModelSettings
    parameters: int  # the number of parameters of this model

    def explain(self, before: ModelSettings, target: int) -> str:
        """Says what differs from the settings `before`, and how far the size is from `target`."""
        changes = [
            f"{key} {getattr(self.model, key)} in place of {getattr(before, key)}"
            for key in ("embed_dim", "num_heads", "ffn_dim")
            if getattr(self.model, key) != getattr(before, key)
        ]
        off = self.parameters / target - 1
        return f"{', '.join(changes) or 'nothing changed'}: {self.parameters:,} ({off:+.2%})"


def match_parameters(
    model: ModelSettings,
    target: int,
    count: Callable[[ModelSettings], int],
    *,
    change_heads: bool = False,
) -> Match:
    """Returns settings of a wider or narrower model that has `target` parameters.

    The width of the model, a multiple of its number of heads, and that of its feed-forward change
    together, as nearly in proportion as the number of parameters allows. The depth and the options
    of systems do not change.

    Args:
        model: the settings to start from.
        target: the number of parameters to reach.
        count: returns the number of parameters of given settings; it raises `ValueError` if they
            do not fit together.
        change_heads: let the number of heads grow with the width, which is then a multiple of the
            width of a head; else the heads become wider.

    Raises:
        ValueError: no width gives this number within half a percent.
    """
    start = count(model)
    if abs(start / target - 1) <= TOLERANCE / 5:
        return Match(model, start)
    found = [
        match
        for width in _widths(model, target, start, change_heads)
        if (match := _with_width(model, width, target, count, change_heads))
    ]
    if not found:
        raise ValueError(
            f"no width near {model.embed_dim} gives {target:,} parameters within "
            f"{TOLERANCE:.1%}: the model has {start:,} at embed_dim {model.embed_dim} and ffn_dim "
            f"{model.ffn_dim}; choose a size for it in the recipe, or compare without --match"
        )
    proportion = model.ffn_dim / model.embed_dim
    return min(
        found,
        key=lambda match: _distance(match.model.ffn_dim / match.model.embed_dim, proportion),
    )


def _widths(model: ModelSettings, target: int, start: int, change_heads: bool) -> list[int]:
    """Widths to try: near the one at which a model in proportion would have `target` parameters."""
    step = model.embed_dim // model.num_heads if change_heads else model.num_heads
    # The number of parameters grows with the width (embeddings) or with its square (the rest).
    low = model.embed_dim * min(target / start, (target / start) ** 0.5)
    high = model.embed_dim * max(target / start, (target / start) ** 0.5)
    # A few more on both sides: a system may need a width that more than the heads divide.
    first, last = int(low // step) - 4, int(high // step) + 5
    return [step * i for i in range(max(1, first), last + 1)]


def _with_width(
    model: ModelSettings,
    width: int,
    target: int,
    count: Callable[[ModelSettings], int],
    change_heads: bool,
) -> Match | None:
    """The match with this width, whose feed-forward is chosen; None if there is none."""
    if change_heads:
        num_heads = width * model.num_heads // model.embed_dim
        model = model.model_copy(update={"num_heads": num_heads})
    try:
        parameters, doubled = (
            count(_sized(model, width, ffn_dim)) for ffn_dim in (model.ffn_dim, 2 * model.ffn_dim)
        )
    except ValueError:
        return None  # a system cannot have this width
    wanted = model.ffn_dim
    if doubled > parameters:  # they are equal if the plan sets the width of every feed-forward
        wanted += round(model.ffn_dim * (target - parameters) / (doubled - parameters))
    # A system may need a width that a larger number divides than the number of heads.
    for step in (model.num_heads << power for power in range(4)):
        ffn_dim = max(1, round(wanted / step)) * step if doubled > parameters else wanted
        try:
            sized = _sized(model, width, ffn_dim)
            match = Match(sized, count(sized))
        except ValueError:
            continue
        if abs(match.parameters / target - 1) <= TOLERANCE:
            return match
    return None


def _sized(model: ModelSettings, embed_dim: int, ffn_dim: int) -> ModelSettings:
    return type(model).model_validate(
        {**model.model_dump(), "embed_dim": embed_dim, "ffn_dim": ffn_dim}
    )


def _distance(ratio: float, other: float) -> float:
    return max(ratio / other, other / ratio)
