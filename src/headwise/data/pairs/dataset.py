"""Data set of encoded sentence pairs, and the batches that are made of them."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from torch.utils.data import Dataset

from headwise.data.encoded import encoded_column, pad, token_mask
from headwise.data.pairs.corpus import PAIRS, Pair
from headwise.data.parts import digest_of
from headwise.data.tokenizers.tokenization import TranslationTokenizer
from headwise.ops.labels import IGNORED_LABEL


class TranslationItem(TypedDict):
    """One encoded pair; both lists end with `<eos>`."""

    input_ids: list[int]
    labels: list[int]


class TranslationDataset(Dataset[TranslationItem]):
    """Encoded sentence pairs.

    Args:
        pairs: sentence pairs, at least one.
        tokenizer: tokenizer that encodes both sides.

    Attributes:
        pairs: the pairs that were given.
        lengths: number of source ids and of target ids of each pair, `<eos>` included, of shape
            `(pairs, 2)`, by which a sampler puts pairs of similar length into one batch.

    Raises:
        ValueError: there are no pairs.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: TranslationTokenizer) -> None:
        if not pairs:
            raise ValueError("pairs is empty, expected at least one pair to train or evaluate on")
        self.pairs = pairs
        self._source, self._target = (
            encoded_column(of_side.encode, pairs, column, of_side.tokenizer)
            for column, of_side in enumerate((tokenizer.source, tokenizer.target))
        )
        self.lengths = np.stack([self._source.lengths, self._target.lengths], axis=1)

    def __len__(self) -> int:
        return len(self.lengths)

    def digest(self) -> str:
        """Returns a hash of the pairs."""
        return digest_of(self.pairs, PAIRS)

    def __getitem__(self, index: int) -> TranslationItem:
        return {"input_ids": self._source[index], "labels": self._target[index]}


def collate_pairs(items: Sequence[TranslationItem], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Joins encoded pairs into a batch, padded on the right to the longest source and target.

    Args:
        items: encoded pairs, at least one.
        pad_token_id: id that fills up the sources.

    Returns:
        `input_ids` and `attention_mask` of shape `(batch, source_time)`, where the mask is 1 for
        text and 0 for padding, and `labels` of shape `(batch, target_time)`, which are -100 for
        padding. All are int64.

    Example:
        >>> items = [{"input_ids": [7, 2], "labels": [5, 2]}, {"input_ids": [2], "labels": [2]}]
        >>> collate_pairs(items, pad_token_id=0)["labels"]
        tensor([[   5,    2],
                [   2, -100]])
    """
    source = [item["input_ids"] for item in items]
    return {
        "input_ids": pad(source, pad_token_id),
        "attention_mask": token_mask(source),
        "labels": pad([item["labels"] for item in items], IGNORED_LABEL),
    }
