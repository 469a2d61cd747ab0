"""Systems of one size: each is made wider or narrower until it has as many parameters as another.

The TIM paper compares in this way: it raises the hidden size of its own model, usually by about a
fifth, until it has the parameters of the standard one.
"""

from collections.abc import Callable
from typing import NamedTuple

from headwise.recipe import ModelSettings

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
    widths = _widths(model, target, start, count)
    found = [match for width in widths if (match := _with_width(model, width, target, count))]
    if not found:
        raise ValueError(
            f"no width near {model.embed_dim} gives {target:,} parameters: the model has {start:,} "
            f"at embed_dim {model.embed_dim} and ffn_dim {model.ffn_dim}; choose a size for it in "
            f"the recipe, or compare without --match"
        )
    proportion = model.ffn_dim / model.embed_dim
    return min(
        found,
        key=lambda match: _distance(match.model.ffn_dim / match.model.embed_dim, proportion),
    )


def _widths(
    model: ModelSettings, target: int, start: int, count: Callable[[ModelSettings], int]
) -> list[int]:
    """Widths around the one at which everything in proportion would have the wanted size."""
    step = model.num_heads
    # Parameters grow with the first power of the width (embeddings) to the second (the rest).
    low = model.embed_dim * min(target / start, (target / start) ** 0.5)
    high = model.embed_dim * max(target / start, (target / start) ** 0.5)
    first, last = int(low // step) - 1, int(high // step) + 2
    return [step * i for i in range(max(1, first), last + 1)]


def _with_width(
    model: ModelSettings, width: int, target: int, count: Callable[[ModelSettings], int]
) -> Match | None:
    """The feed-forward that brings a model of this width nearest to the wanted size."""
    step = model.num_heads  # what systems divide it by, they divide heads by
    try:
        small, larger = (count(_sized(model, width, ffn_dim)) for ffn_dim in (step, 2 * step))
        steps = 1 + round((target - small) / (larger - small))
        sized = _sized(model, width, step * max(1, steps))
        parameters = count(sized)
    except ValueError:
        return None  # a system cannot divide this width
    return Match(sized, parameters) if abs(parameters / target - 1) <= TOLERANCE else None


def _sized(model: ModelSettings, embed_dim: int, ffn_dim: int) -> ModelSettings:
    return ModelSettings.model_validate(
        {**model.model_dump(), "embed_dim": embed_dim, "ffn_dim": ffn_dim}
    )


def _distance(ratio: float, other: float) -> float:
    return max(ratio / other, other / ratio)
