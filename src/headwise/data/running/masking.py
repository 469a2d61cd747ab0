"""Inputs of masked language modelling: sentences are packed into blocks, and words are hidden.

Devlin et al. 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding*, https://arxiv.org/abs/1810.04805 (which tokens are hidden, and how);
Liu et al. 2019, *RoBERTa: A Robustly Optimized BERT Pretraining Approach*,
https://arxiv.org/abs/1907.11692 (tokens are hidden anew in each epoch; FULL-SENTENCES).
"""

from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from headwise.ops.labels import IGNORED_LABEL
from headwise.settings import LARGEST_SEED, FrozenSettings


class MaskingSettings(FrozenSettings):
    """Settings of masking: which tokens are predicted, and what the model reads in their place."""

    fraction: float = Field(0.15, gt=0, le=1)
    """Share of the tokens of a sequence, special ones excluded, that are predicted."""
    masked: float = Field(0.8, ge=0, le=1)
    """Share of the predicted tokens that <mask> replaces."""
    random: float = Field(0.1, ge=0, le=1)
    """Share of the predicted tokens that a random token replaces; the rest stay as they are."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the random masks; the same for all systems and seeds of a comparison."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        # Up to rounding: 0.9 and 0.1 may add up to a little more than 1.
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError(
                f"masked is {self.masked} and random {self.random}, expected at most 1 together: "
                f"they are shares of the same tokens"
            )
        return self


def mask_tokens(
    ids: np.ndarray,
    settings: MaskingSettings,
    *,
    is_word: np.ndarray,
    mask_id: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Hides some words of a sequence; a word is any token that is not special.

    Of n words, ⌊n · fraction + u⌋ are chosen, u uniform in [0, 1), and at least one. As in the code
    of RoBERTa, this is the fraction up to one token, and on average exactly the fraction. (A draw
    for each token by itself would make batches differ in how much they predict.) Each chosen word
    is replaced by the mask or by a random word, or stays, independently of the others.

    Args:
        ids: tokens, of shape `(time,)`.
        settings: shares of the tokens.
        is_word: for each token of the vocabulary whether it is a word and no special token, of
            shape `(vocabulary,)`; only words are chosen, and only words replace them.
        mask_id, generator: id of the mask, and source of the random draws.

    Returns:
        Inputs and labels, each of shape `(time,)`; labels are -100 where nothing is predicted.
    """
    inputs, labels = ids.copy(), np.full_like(ids, IGNORED_LABEL)
    candidates = np.flatnonzero(is_word[ids])
    if not len(candidates):
        return inputs, labels
    number = max(1, int(len(candidates) * settings.fraction + generator.random()))
    chosen = generator.choice(candidates, min(number, len(candidates)), replace=False)
    labels[chosen] = ids[chosen]
    fate = generator.random(len(chosen))
    drawn = generator.choice(np.flatnonzero(is_word), len(chosen))
    masked = fate < settings.masked
    replaced = ~masked & (fate < settings.masked + settings.random)
    inputs[chosen[masked]] = mask_id
    inputs[chosen[replaced]] = drawn[replaced]
    return inputs, labels


def pack_sentences(lengths: Iterable[int], capacity: int) -> Iterator[tuple[int, int]]:
    """Packs consecutive full sentences into blocks of at most `capacity` tokens.

    The sentences follow each other in a stream, each with its end of sentence. A sentence of one
    token is an empty one, which separates two documents: it stays inside a block that goes on
    from one document to the next (RoBERTa's extra separator), and is dropped at the beginning or
    end of a block. A sentence that is longer than a block is cut.

    Yields:
        For each block the position of its first token in the stream, and the position after its
        last token.

    >>> list(pack_sentences([3, 4, 1, 2, 1, 9], capacity=8))
    [(0, 7), (8, 10), (11, 19), (19, 20)]
    """
    start = end = 0  # of the block that is being filled
    position = 0
    for length in lengths:
        is_separator = length == 1
        if end > start and position + length - start > capacity:
            yield start, end
            start = end = position
        if is_separator and start == end:
            start = end = position + 1  # nothing to separate yet
        while position + length - start > capacity:
            yield start, start + capacity
            length -= start + capacity - position
            position = start = end = start + capacity
        position += length
        # A separator counts once a sentence follows it.
        end = end if is_separator else position
    if end > start:
        yield start, end
