"""How much of the decisions a label explains: position, token, class, half of an image.

The rows of weights w of one system are divided by a label of C classes. Of N rows, n_c have class
c, with the mean w̄_c; the mean of all is w̄. The share of the variance between the classes is the
correlation ratio, summed over the units,

    η² = Σ_c n_c ‖w̄_c − w̄‖² / Σ ‖w − w̄‖².

A label of many classes explains much of any decisions by chance: if the classes are dealt out at
random, the mean of η² is (C − 1) / (N − 1). Kelley's ε² takes that away,

    ε² = (η² − p) / (1 − p),    p = (C − 1) / (N − 1).

It is 1 if the label says all about the decisions, and 0 on average if it says nothing, whatever the
number of classes. By chance it falls a little below 0. It is the adjusted R² of a linear model of
the weights whose only variable is the label.

Kelley 1935, *An Unbiased Correlation Ratio Measure*, https://doi.org/10.1073/pnas.21.9.554. Sums of
squares over several numbers at once, with permutations of the labels as chance, are those of
Anderson 2001, *A New Method for Non-Parametric Multivariate Analysis of Variance*,
https://doi.org/10.1111/j.1442-9993.2001.01070.pp.x.

Figure 2 of Lamb et al. 2021, https://arxiv.org/abs/2103.00336, plots the "relative variance" of the
decisions over the two sides of an image, without an equation. With the label `side` we read it as
η²; it is what `headwise.tasks.images.specialisation` computes of some images.

What is a row depends on who decides and on the label:

- a system that decides at each position, a label of positions: each position is a row;
- a system that decides at each position, a label of sequences: the mean over a sequence is a row.
  Its positions resemble each other, and would count as more evidence than they are;
- a system that decides for each sequence, a label of sequences, or their length: each sequence is a
  row;
- a label that varies within a sequence cannot explain what is decided for the whole of it, and
  nothing explains what is decided once and for all. Such pairs are left out.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.analysis.decisions.observing import Observed, Rows, Where
from headwise.analysis.decisions.places import Place
from headwise.analysis.decisions.sums import TokenSums
from headwise.tasks.scores import Record

POSITION, LENGTH = "position", "length"


class ExplainedShare(Record):
    """How much of the decisions of one system a label explains."""

    where: Where
    # The label: position (in classes that double: 0, 1, 2 to 3, 4 to 7, ...), what the tokens
    # are called, a label of the task, or the length of the sequences (as positions).
    label: str
    of: Rows  # what a row is
    rows: int  # number of rows that have a class, N
    classes: int  # number of classes that occur, C
    # η², the share of the variance between the classes; None if nothing varies, or the run has
    # diverged.
    between: float | None
    # ε², the same without what is expected by chance; 1 is all, about 0 nothing. None as
    # before, or if each row has a class of its own.
    share: float | None


class Explained:
    """Counts how much of the decisions each label explains, from sums per class.

    Its memory grows with the number of classes, such as that of the tokens, and not with that of
    the batches.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[Place, str, Rows], _Classes] = {}

    def add(self, observed: list[Observed]) -> None:
        """Counts the decisions of one batch."""
        for each in observed:
            if each.sequences is None:
                continue
            for label, of, rows, classes in _divided(each):
                key = (each.place, label, of)
                if key not in self._classes:
                    self._classes[key] = _Classes(rows.size(1))
                self._classes[key].add(rows, classes)

    def result(self) -> list[ExplainedShare]:
        """Returns a record for each system and label, in the order in which the systems stand."""
        return [
            found.record(Where.of(place), label, of)
            for (place, label, of), found in self._classes.items()
            if len(found.sums.tokens)
        ]


class _Classes:
    """Sums of the rows of each class."""

    def __init__(self, units: int) -> None:
        self.sums = TokenSums(units + 1)  # of the weights of each class, and how many rows it has
        self.squares = 0.0

    def add(self, rows: Tensor, classes: Tensor) -> None:
        self.sums.add(classes, pad(rows, (0, 1), value=1.0))
        self.squares += float(rows[classes >= 0].square().sum())

    def record(self, where: Where, label: str, of: Rows) -> ExplainedShare:
        sums, counts = self.sums.sums[:, :-1], self.sums.sums[:, -1]
        rows, classes = int(counts.sum()), len(counts)
        of_mean = float(sums.sum(0).square().sum()) / rows
        of_classes = float((sums.square().sum(1) / counts).sum())
        total = self.squares - of_mean
        between = share = None
        # Not if nothing varies but by rounding, or if the run has diverged.
        if total > 1e-12 * self.squares:
            between = min(1.0, max(0.0, (of_classes - of_mean) / total))
        if between is not None and rows > classes:
            by_chance = (classes - 1) / (rows - 1)
            share = (between - by_chance) / (1 - by_chance)
        return ExplainedShare(
            where=where,
            label=label,
            of=of,
            rows=rows,
            classes=classes,
            between=between,
            share=share,
        )


def _divided(observed: Observed) -> Iterator[tuple[str, Rows, Tensor, Tensor]]:
    """Each label with what a row is, the rows `(rows, units)` and their classes `(rows,)`."""
    weights = observed.weights.cpu().double()
    described = observed.described
    if observed.decides_by_position:
        yield POSITION, "positions", weights, doubling(observed.time_of.cpu())
        if described is not None and described.tokens is not None:
            tokens = observed.at_positions(described.tokens)
            yield described.word, "positions", weights, tokens.cpu()
    if described is None:
        return
    if not observed.decides_by_position:
        lengths = observed.sequence_of.cpu().bincount(minlength=described.shape[0])
        yield LENGTH, "sequences", *_by_sequence(observed, weights, doubling(lengths))
    for label, (classes, _) in described.classes.items():
        if classes.dim() == 1:
            yield label, "sequences", *_by_sequence(observed, weights, classes.cpu())
        elif observed.decides_by_position:
            yield label, "positions", weights, observed.at_positions(classes).cpu()


def _by_sequence(observed: Observed, weights: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """The mean weights of each sequence that has any, and its class."""
    assert observed.sequences is not None
    sequences = observed.sequences.cpu()
    counts = sequences.bincount(minlength=len(classes))
    sums = weights.new_zeros(len(classes), weights.size(1)).index_add_(0, sequences, weights)
    there = counts > 0
    return sums[there] / counts[there].unsqueeze(1), classes[there]


def doubling(numbers: Tensor) -> Tensor:
    """Classes of positions, or other counts, that double: 0, 1, 2 to 3, 4 to 7, ...

    >>> doubling(torch.tensor([0, 1, 2, 3, 4, 7, 8]))
    tensor([0, 1, 2, 2, 3, 3, 4])
    """
    return torch.frexp(numbers.double()).exponent.long()
