"""Masked language modelling's inputs: sentences packed into blocks, and words hidden in them.

Devlin et al. 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding*, https://arxiv.org/abs/1810.04805 (what is hidden, and how);
Liu et al. 2019, *RoBERTa: A Robustly Optimized BERT Pretraining Approach*,
https://arxiv.org/abs/1907.11692 (hidden anew in each epoch; FULL-SENTENCES).
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import Self

from headwise.ops.labels import IGNORED_LABEL


class MaskingSettings(BaseModel):
    """Which tokens are to be predicted, and what stands in their place."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fraction: float = Field(
        0.15, gt=0, le=1, description="share of the tokens of a sequence that are to be predicted"
    )
    masked: float = Field(
        0.8, ge=0, le=1, description="of these, the share in whose place <mask> stands"
    )
    random: float = Field(
        0.1,
        ge=0,
        le=1,
        description="of these, the share in whose place a random word stands; the rest is left",
    )
    seed: int = Field(
        1, ge=0, description="of the draws; the same for all systems and seeds of a comparison"
    )

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
    """Hide some tokens of a sequence: what the model reads, and what it is to predict.

    Of n words, ⌊n · fraction + u⌋ are chosen, u uniform in [0, 1), and at least one: as in the code
    of RoBERTa, the fraction up to one token, and on average exactly that. (A draw for each token
    by itself would make batches differ in how much they predict.) Of the chosen ones each by
    itself becomes the mask, a random word, or stays.

    Args:
        ids: tokens `(time,)`.
        settings: the shares.
        is_word: for each token of the vocabulary whether it is one, and nothing special; only
            words are chosen, and drawn.
        mask_id: what hides a token.
        generator: of the draws.

    Returns:
        Inputs and labels `(time,)`; labels are -100 where nothing is to be predicted.

    >>> ids = np.array([1, 10, 11, 12, 13, 2])
    >>> inputs, labels = mask_tokens(ids, MaskingSettings(masked=1, random=0),
    ...     is_word=np.arange(20) > 4, mask_id=4, generator=np.random.default_rng(0))
    >>> inputs
    array([ 1, 10, 11,  4, 13,  2])
    >>> labels
    array([-100, -100, -100,   12, -100, -100])
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


def pack_sentences(lengths: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """Blocks of full sentences: the next ones that together have at most `capacity` tokens.

    The sentences stand one behind the other in a stream, each with its end of sentence. A
    sentence of one token is an empty one, which stands between two documents: it stays where a
    block goes on from one document to the next (RoBERTa's extra separator), and is dropped where
    a block begins or ends. A sentence that is longer than a block is cut.

    Args:
        lengths: tokens of each sentence.
        capacity: tokens of a block.

    Returns:
        The first token of each block in the stream, and the one behind its last.

    >>> pack_sentences([3, 4, 1, 2, 1, 9], capacity=8)
    [(0, 7), (8, 10), (11, 19), (19, 20)]
    """
    if capacity < 2:
        raise ValueError(f"capacity is {capacity}, expected at least a token and its separator")
    blocks: list[tuple[int, int]] = []
    start = end = 0  # of the block that is being filled
    position = 0
    for length in lengths:
        is_separator = length == 1
        if end > start and position + length - start > capacity:
            blocks.append((start, end))
            start = end = position
        if is_separator and start == end:
            start = end = position + 1  # nothing to separate yet
        while position + length - start > capacity:
            blocks.append((start, start + capacity))
            length -= start + capacity - position
            position = start = end = start + capacity
        position += length
        # A separator counts once a sentence stands behind it.
        end = end if is_separator else position
    if end > start:
        blocks.append((start, end))
    return blocks


class MaskedItem(TypedDict):
    """One block: what the model reads, and what it is to predict, -100 where nothing is."""

    input_ids: list[int]
    labels: list[int]


class MaskedBlocks(Dataset[MaskedItem]):
    """Blocks of text, each with masks that depend on seed, stream and index alone.

    Args:
        ids: the stream `(tokens,)`.
        blocks: where each block begins and ends.
        settings: the shares, and the seed.
        bos_id: stands in front of each block.
        mask_id: what hides a token.
        special_ids: neither hidden nor drawn in another's place; all other ids are words.
        vocab_size: number of ids.
        stream: tells data sets of one seed apart.

    Attributes:
        lengths: of each block, the first token included.

    Raises:
        ValueError: there are no blocks, or no words.
    """

    epoch = 0

    def __init__(
        self,
        ids: Tensor,
        blocks: Sequence[tuple[int, int]],
        settings: MaskingSettings,
        *,
        bos_id: int,
        mask_id: int,
        special_ids: Sequence[int],
        vocab_size: int,
        stream: int = 0,
    ) -> None:
        if not blocks:
            raise ValueError("blocks is empty: there is nothing to train or evaluate on")
        self.is_word = ~np.isin(np.arange(vocab_size), special_ids)
        if not self.is_word.any():
            raise ValueError(
                f"vocab_size is {vocab_size}, expected more than the {len(special_ids)} special "
                f"tokens"
            )
        self.ids = ids
        self.blocks = torch.tensor(blocks)  # (blocks, 2); every worker would copy a list
        self.settings = settings
        self.bos_id = bos_id
        self.mask_id = mask_id
        self.stream = stream
        self.lengths: list[int] = [1 + end - start for start, end in blocks]

    def __len__(self) -> int:
        return len(self.lengths)

    def text(self, index: int) -> list[int]:
        """The ids of a block before anything is hidden."""
        start, end = self.blocks[index].tolist()
        return [self.bos_id, *self.ids[start:end].tolist()]

    def __getitem__(self, index: int) -> MaskedItem:
        return self.draw(index, self.epoch)

    def draw(self, index: int, epoch: int) -> MaskedItem:
        """A block with the masks of an epoch."""
        index = range(len(self))[index]  # counted from the end it is the same block
        key = (self.settings.seed, self.stream, epoch, index)
        inputs, labels = mask_tokens(
            np.array(self.text(index)),
            self.settings,
            is_word=self.is_word,
            mask_id=self.mask_id,
            generator=np.random.default_rng(key),
        )
        return {"input_ids": inputs.tolist(), "labels": labels.tolist()}


class DynamicallyMaskedBlocks(MaskedBlocks):
    """Blocks whose masks are drawn anew in each epoch (RoBERTa's dynamic masking).

    They depend on the epoch beside seed, stream and index, so that a resumed run sees what an
    uninterrupted one does.
    """

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's masks come next."""
        self.epoch = epoch
