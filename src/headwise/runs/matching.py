"""Changes the width of a model until it has a given number of parameters.

So systems can be compared at one size. Lamb et al. 2021, *Transformers with Competitive Ensembles
of Independent Mechanisms*, https://arxiv.org/abs/2103.00336, compare in this way: they raise the
hidden size of their own model, usually by about a fifth, until it has the parameters of the
standard one. The number of heads grows with it there, from 8 to 10 and from 12 to 16.
"""

from collections.abc import Callable
from typing import NamedTuple

TOLERANCE = 0.005  # largest relative difference in the number of parameters


class Sizes(NamedTuple):
    """The sizes of a model that are changed; the names are those of its configuration."""

    embed_dim: int
    num_heads: int
    ffn_dim: int


class Match(NamedTuple):
    """The sizes that were found for a model."""

    sizes: Sizes
    parameters: int  # the number of parameters of this model

    def explain(self, before: Sizes, target: int) -> str:
        """Says what differs from the sizes `before`, and how far the size is from `target`."""
        changes = [
            f"{key} {value} in place of {former}"
            for key, value, former in zip(Sizes._fields, self.sizes, before, strict=True)
            if value != former
        ]
        off = self.parameters / target - 1
        return f"{', '.join(changes) or 'nothing changed'}: {self.parameters:,} ({off:+.2%})"


def match_parameters(
    sizes: Sizes, target: int, count: Callable[[Sizes], int], *, change_heads: bool = False
) -> Match:
    """Returns the sizes of a wider or narrower model that has `target` parameters.

    The width of the model, a multiple of its number of heads, and that of its feed-forward change
    together, as nearly in proportion as the number of parameters allows. The depth and the options
    of systems do not change.

    Args:
        sizes: the sizes to start from.
        target: the number of parameters to reach.
        count: returns the number of parameters of a model of given sizes; it raises `ValueError` if
            they do not fit together.
        change_heads: let the number of heads grow with the width, which is then a multiple of the
            width of a head; else the heads become wider.

    Raises:
        ValueError: no width gives this number within half a percent.
    """
    start = count(sizes)
    if abs(start / target - 1) <= TOLERANCE / 5:
        return Match(sizes, start)
    found = [
        match
        for width in _widths(sizes, target, start, change_heads)
        if (match := _with_width(sizes, width, target, count, change_heads))
    ]
    if not found:
        raise ValueError(
            f"no width near {sizes.embed_dim} gives {target:,} parameters within "
            f"{TOLERANCE:.1%}: the model has {start:,} at embed_dim {sizes.embed_dim} and ffn_dim "
            f"{sizes.ffn_dim}; choose a size for it in the recipe, or compare without --match"
        )
    proportion = sizes.ffn_dim / sizes.embed_dim
    return min(
        found,
        key=lambda match: _distance(match.sizes.ffn_dim / match.sizes.embed_dim, proportion),
    )


def _widths(sizes: Sizes, target: int, start: int, change_heads: bool) -> list[int]:
    """Widths to try: near the one at which a model in proportion would have `target` parameters."""
    step = sizes.embed_dim // sizes.num_heads if change_heads else sizes.num_heads
    # The number of parameters grows with the width (embeddings) or with its square (the rest).
    low = sizes.embed_dim * min(target / start, (target / start) ** 0.5)
    high = sizes.embed_dim * max(target / start, (target / start) ** 0.5)
    # A few more on both sides: a system may need a width that more than the heads divide.
    first, last = int(low // step) - 4, int(high // step) + 5
    return [step * i for i in range(max(1, first), last + 1)]


def _with_width(
    sizes: Sizes, width: int, target: int, count: Callable[[Sizes], int], change_heads: bool
) -> Match | None:
    """The match with this width, whose feed-forward is chosen; None if there is none."""
    num_heads = width * sizes.num_heads // sizes.embed_dim if change_heads else sizes.num_heads
    before = sizes.ffn_dim
    try:
        parameters, doubled = (
            count(Sizes(width, num_heads, ffn_dim)) for ffn_dim in (before, 2 * before)
        )
    except ValueError:
        return None  # a system cannot have this width
    wanted = before
    if doubled > parameters:  # they are equal if the plan sets the width of every feed-forward
        wanted += round(before * (target - parameters) / (doubled - parameters))
    # A system may need a width that a larger number divides than the number of heads.
    for step in (num_heads << power for power in range(4)):
        ffn_dim = max(1, round(wanted / step)) * step if doubled > parameters else wanted
        sized = Sizes(width, num_heads, ffn_dim)
        try:
            match = Match(sized, count(sized))
        except ValueError:
            continue
        if abs(match.parameters / target - 1) <= TOLERANCE:
            return match
    return None


def _distance(ratio: float, other: float) -> float:
    return max(ratio / other, other / ratio)
