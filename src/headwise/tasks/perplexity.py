"""Scores of language models on held-out text."""

import math


def perplexity(nats: float, count: float) -> float:
    """Returns exp(nats / count), which stays finite for a diverged model.

    Args:
        nats: summed negative log-likelihood.
        count: number of tokens or words; the perplexity of none is NaN.

    >>> perplexity(0.0, 0), perplexity(float("inf"), 1) < float("inf")
    (nan, True)
    """
    return math.exp(min(nats / count, 700.0)) if count else math.nan
