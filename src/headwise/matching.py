"""Systems of one size: each is made wider or narrower until it has as many parameters as another.

The TIM paper compares in this way: it raises the hidden size of its own model, usually by about a
fifth, until it has the parameters of the standard one.
"""

from collections.abc import Callable
from typing import NamedTuple

from headwise.recipe.settings import ModelSettings

TOLERANCE = 0.005  # of the number of parameters


class Match(NamedTuple):
    """What was chosen for a system, and the size that it gives.

    Attributes:
        model: the settings, with `embed_dim` and `ffn_dim` chosen.
        parameters: how many there are.
    """

    model: ModelSettings
    parameters: int

    def explain(self, before: ModelSettings, target: int) -> str:
        """In words: what differs from `before`, and how far from `target` it is."""
        changes = [
            f"{key} {getattr(self.model, key)} in place of {getattr(before, key)}"
            for key in ("embed_dim", "ffn_dim")
            if getattr(self.model, key) != getattr(before, key)
        ]
        off = self.parameters / target - 1
        return f"{', '.join(changes) or 'nothing changed'}: {self.parameters:,} ({off:+.2%})"


def match_parameters(
    model: ModelSettings, target: int, count: Callable[[ModelSettings], int]
) -> Match:
    """The settings, widened or narrowed, of a model with `target` parameters.

    The width of the model, in steps of its heads, and that of its feed-forward change together,
    as nearly in proportion as the number of parameters lets them; depth, heads and the systems'
    own options stay.

    Args:
        model: what to start from.
        target: the number of parameters that is wanted.
        count: how many parameters given settings have; `ValueError` where they do not fit.

    Raises:
        ValueError: no width gives that number within half a percent.
    """
    start = count(model)
    if abs(start / target - 1) <= TOLERANCE / 5:
        return Match(model, start)
    found = [
        match
        for width in _widths(model, target, start)
        if (match := _with_width(model, width, target, count))
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


def _widths(model: ModelSettings, target: int, start: int) -> list[int]:
    """Widths around the one at which everything in proportion would have the wanted size."""
    step = model.num_heads
    # Parameters grow with the first power of the width (embeddings) to the second (the rest).
    low = model.embed_dim * min(target / start, (target / start) ** 0.5)
    high = model.embed_dim * max(target / start, (target / start) ** 0.5)
    # A few more on both sides: a system may want its width divisible by more than the heads.
    first, last = int(low // step) - 4, int(high // step) + 5
    return [step * i for i in range(max(1, first), last + 1)]


def _with_width(
    model: ModelSettings, width: int, target: int, count: Callable[[ModelSettings], int]
) -> Match | None:
    """The feed-forward that brings a model of this width to the wanted size, if there is one."""
    try:
        parameters, doubled = (
            count(_sized(model, width, ffn_dim)) for ffn_dim in (model.ffn_dim, 2 * model.ffn_dim)
        )
    except ValueError:
        return None  # a system cannot divide this width
    wanted = model.ffn_dim
    if doubled > parameters:  # equal where the plan gives every feed-forward a width of its own
        wanted += round(model.ffn_dim * (target - parameters) / (doubled - parameters))
    # What divides the feed-forward that there is, a system may want to divide this one too.
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
