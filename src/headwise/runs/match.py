"""Changes the width of a model until it has a given number of parameters.

Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*,
https://arxiv.org/abs/2103.00336, compare systems at one size in this way.
"""

from collections.abc import Callable

TOLERANCE = 0.005  # largest relative difference in the number of parameters


def match_parameters(
    embed_dim: int, ffn_dim: int, num_heads: int, target: int, count: Callable[[int, int], int]
) -> tuple[int, int]:
    """Returns the widths at which a model has `target` parameters, within half a percent.

    The width of the model, a multiple of its number of heads, and that of its feed-forward change
    together, as nearly in proportion as the number of parameters allows; nothing else changes.

    Args:
        embed_dim, ffn_dim: the widths to start from.
        count: returns the number of parameters of a model of two such widths, or raises
            `ValueError` if there is no such model.

    Raises:
        ValueError: no width gives this number.
    """
    start = count(embed_dim, ffn_dim)
    if abs(start / target - 1) <= TOLERANCE / 5:
        return embed_dim, ffn_dim
    # Parameters grow with the width (embeddings) or with its square (all else). Some more widths
    # on both sides: a system may need one that more than the number of heads divides.
    low, high = sorted([embed_dim * target / start, embed_dim * (target / start) ** 0.5])
    first, last = max(1, int(low // num_heads) - 4), int(high // num_heads) + 4
    found = []
    for width in range(num_heads * first, num_heads * last + 1, num_heads):
        try:
            small, large = count(width, ffn_dim), count(width, 2 * ffn_dim)
            inner = ffn_dim
            if large > small:  # else the plan sets the width of every feed-forward
                wanted = ffn_dim + ffn_dim * (target - small) / (large - small)
                inner = max(1, round(wanted / num_heads)) * num_heads
            if abs(count(width, inner) / target - 1) <= TOLERANCE:
                ratio = (inner / ffn_dim) / (width / embed_dim)
                found.append((max(ratio, 1 / ratio), width, inner))
        except ValueError:
            continue  # a system needs other widths
    if not found:
        raise ValueError(
            f"no width near {embed_dim} gives {target:,} parameters within {TOLERANCE:.1%}: the "
            f"model has {start:,} at embed_dim {embed_dim} and ffn_dim {ffn_dim}; choose sizes for "
            f"it in the recipe, or compare without --match"
        )
    return min(found)[1:]
