"""Scores with their intervals, and the outcome of an evaluation.

A score has a row of numbers for each item of the test split, and the name of the statistic of these
rows. So its value, its interval, and its difference to the score of another run follow from it
alone.

The bootstrap resamples the items with replacement (Efron 1979, *Bootstrap Methods: Another Look at
the Jackknife*, https://doi.org/10.1214/aos/1176344552). The resamples depend on the number of items
alone, so that all systems and seeds are scored on the same resamples (Koehn 2004, *Statistical
Significance Tests for Machine Translation Evaluation*, https://aclanthology.org/W04-3250).
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

Rows = Sequence[Sequence[float]] | np.ndarray  # a row of numbers for each item
RESAMPLES = 1000
# With fewer items the test is unreliable: of two equally good systems it finds one better, at
# p < 0.05, in 7 of 100 comparisons on 8 items, and in 21 on 4 items.
MIN_ITEMS = 10
_SEED = 12345
_COUNTS_AT_ONCE = 4_000_000  # counts in memory

Item = TypeVar("Item")


class Record(BaseModel):
    """A record in a file; unknown fields are an error."""

    # A diverged run has NaN, which JSON lacks; pydantic cannot read back the null that it writes.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


# --- statistics -------------------------------------------------------------------------------


def _ratio(totals: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return totals[:, 0] / totals[:, 1]


def _perplexity(totals: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(_ratio(totals), 700.0))  # finite for a model that diverged


def _sacrebleu_statistic(name: str) -> Callable[..., np.ndarray]:
    def compute(totals: np.ndarray, **options: Any) -> np.ndarray:
        from sacrebleu import metrics

        metric: Any = getattr(metrics, name)(**options)
        counts = totals.astype(int).tolist()
        return np.array([metric._compute_score_from_stats(row).score for row in counts])

    return compute


def _pearson(rows: np.ndarray) -> float:
    """Returns 100 times the correlation of two columns; NaN if one is constant up to rounding."""
    largest = np.abs(rows).max(0)
    if (np.ptp(rows, axis=0) <= 1e-9 * largest).any():
        return math.nan
    return 100.0 * float(np.corrcoef((rows / largest).T)[0, 1])


def _spearman(rows: np.ndarray) -> float:
    from scipy.stats import rankdata

    return _pearson(rankdata(rows, axis=0))


# Statistics of the sums of rows over the items, `(resamples, numbers)`. BLEU and chrF have the
# counts of sacrebleu; the others a numerator and a denominator: in `accuracy` 1 if an item is
# correct, else 0, and 1; in `perplexity` and `bits` the nats, and the number of tokens or pixels.
_SUM_STATISTICS: dict[str, Callable[..., np.ndarray]] = {
    "ratio": _ratio,
    "accuracy": lambda totals: 100.0 * _ratio(totals),
    "perplexity": _perplexity,
    "bits": lambda totals: _ratio(totals) / math.log(2),
    "bleu": _sacrebleu_statistic("BLEU"),
    "chrf": _sacrebleu_statistic("CHRF"),
}
# Statistics of all rows together, which have two numbers each.
_CORRELATIONS = {"pearson": _pearson, "spearman": _spearman}
# The ranges of statistics.
_BOUNDS = {
    **dict.fromkeys(("accuracy", "bleu", "chrf"), (0.0, 100.0)),
    **dict.fromkeys(("pearson", "spearman"), (-100.0, 100.0)),
    "perplexity": (1.0, math.inf),
    "bits": (0.0, math.inf),
}


def resampled_scores(runs: Sequence["Score"], resamples: int = RESAMPLES) -> np.ndarray:
    """Returns the values of a score of several runs on the same resamples, `(runs, resamples)`.

    Raises:
        ValueError: the runs are not scored on equally many items, or on none.
    """
    arrays = [as_rows(score.rows) for score in runs]
    sizes = sorted({len(rows) for rows in arrays})
    if len(sizes) != 1:
        raise ValueError(
            f"runs have {' and '.join(map(str, sizes)) or 'no'} items, expected equal numbers: "
            f"all have to be scored on the same items"
        )
    values = [
        [score.resampled_values(rows, counts) for score, rows in zip(runs, arrays, strict=True)]
        for counts in _resample_counts(sizes[0], resamples)
    ]
    return np.concatenate(values, axis=1)


def as_rows(items: Rows) -> np.ndarray:
    """Returns the rows as an array of shape `(items, numbers)`."""
    rows = np.asarray(items, dtype=np.float64)
    if rows.ndim != 2 or not len(rows):
        raise ValueError(f"rows has the shape {rows.shape}, expected (items, numbers), not empty")
    return rows


def _resample_counts(items: int, resamples: int) -> Iterator[np.ndarray]:
    """Yields the count of each item in some resamples at a time, `(resamples, items)`."""
    generator = np.random.default_rng(_SEED)
    at_once = max(1, _COUNTS_AT_ONCE // items)
    for start in range(0, resamples, at_once):
        number = min(at_once, resamples - start)
        indices = generator.integers(items, size=(number, items))
        indices += items * np.arange(number)[:, None]
        counts = np.bincount(indices.ravel(), minlength=number * items)
        yield counts.reshape(number, items).astype(np.float64)


# --- the outcome of an evaluation -------------------------------------------------------------


class Score(Record):
    """One score of a model on held-out data."""

    name: str = Field(description="Name of the score, as tables show it: BLEU.")
    value: float
    low: float | None = Field(None, description="Lower end of the 95% bootstrap interval.")
    high: float | None = Field(None, description="Upper end of the 95% bootstrap interval.")
    statistic: str = Field("mean", description="Name of the statistic of the rows.")
    options: dict[str, Any] = Field({}, description="Further arguments of the statistic.")
    rows: list[list[float]] = Field([], description="A row of numbers for each item, in order.")
    lower_is_better: bool = False
    digits: int = Field(1, description="Number of decimals in tables.")
    note: str = Field("", description="How the score was computed, such as a signature.")

    @classmethod
    def from_rows(cls, name: str, rows: Rows, statistic: str = "mean", **fields: Any) -> Self:
        """Computes a score from a row of numbers for each item, with its interval.

        >>> right = [[1.0, 1.0]] * 80 + [[0.0, 1.0]] * 20
        >>> print(Score.from_rows("accuracy", right, "accuracy"))
        accuracy 80.00 [72.97, 87.00]
        """
        array = as_rows(rows)
        score = cls(name=name, value=math.nan, statistic=statistic, rows=array.tolist(), **fields)
        score.value = float(score.resampled_values(array, np.ones((1, len(array))))[0])
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            low, high = np.percentile(resampled_scores([score]), [2.5, 97.5])
        if math.isfinite(low + high):  # a resample may have no score
            score.low, score.high = float(low), float(high)
        return score

    def resampled_values(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Returns the score of each resample, given its counts of rows, `(resamples, items)`."""
        if self.statistic == "mean":
            return (counts @ rows)[:, 0] / counts.sum(1)
        if self.statistic in _SUM_STATISTICS:
            return _SUM_STATISTICS[self.statistic](counts @ rows, **self.options)
        compute = _CORRELATIONS[self.statistic]
        return np.array([compute(rows.repeat(times, axis=0)) for times in counts.astype(int)])

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest possible value."""
        return _BOUNDS.get(self.statistic, (-math.inf, math.inf))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the 95% interval; None without one, or if all resamples score alike."""
        if self.low is None or self.high is None or self.low == self.high:
            return None
        return self.low, self.high

    def __str__(self) -> str:
        if math.isnan(self.value):  # a correlation, where all labels or all outputs are equal
            return f"{self.name} undefined"
        text = f"{self.name} {self.value:.{self.digits + 1}f}"
        if self.interval is None:
            return text
        low, high = (f"{end:.{self.digits + 1}f}" for end in self.interval)
        return f"{text} [{low}, {high}]"


class Sample(Record):
    """One item of the test split as text, with the output of the model."""

    given: dict[str, str] = Field(description="Label to text: Source, Reference.")
    made: str = Field(description="Output of the model.")


class Outcome(Record):
    """The result of a model on one split of the data."""

    scores: list[Score] = Field(min_length=1, description="The scores; the first ranks systems.")
    outputs: list[str] = []  # the text that the model wrote for each item
    samples: list[Sample] = []
    picture: str | None = None  # a PNG in base64: images of the data, below them the model's
    content_hash: str = ""  # of the items, see `Task.content_hash`


def spread(items: Sequence[Item], number: int) -> list[Item]:
    """Returns `number` items, spread evenly over the sequence; all items if there are fewer.

    >>> spread("abcdefgh", 3), spread("abc", 5), spread("abc", 0)
    (['a', 'c', 'f'], ['a', 'b', 'c'], [])
    """
    number = min(number, len(items))
    return [items[index * len(items) // number] for index in range(number)]
