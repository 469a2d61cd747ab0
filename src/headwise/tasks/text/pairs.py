"""Sentence pairs, encoded: one by one and as batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch.utils.data import Dataset

from headwise.ops.labels import IGNORED_LABEL
from headwise.tasks.text.corpora import Pair
from headwise.tasks.text.encoded import Ragged, pad, token_mask
from headwise.tasks.text.tokenization import TranslationTokenizer


class TranslationItem(TypedDict):
    """One encoded pair; both lists end with ``<eos>``."""

    input_ids: list[int]
    labels: list[int]


class TranslationDataset(Dataset[TranslationItem]):
    """Encoded sentence pairs.

    Args:
        pairs: sentence pairs, at least one.
        tokenizer: encodes both sides.

    Attributes:
        pairs: as given.
        lengths: for each pair its number of source and of target ids, ``<eos>`` included; what a
            sampler needs to put pairs of similar length together.

    Raises:
        ValueError: there are no pairs.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: TranslationTokenizer) -> None:
        if not pairs:
            raise ValueError("pairs is empty: there is nothing to train or evaluate on")
        self.pairs = pairs
        self._source = Ragged(tokenizer.encode_source, [pair.source for pair in pairs])
        self._target = Ragged(tokenizer.encode_target, [pair.target for pair in pairs])
        self.lengths: list[tuple[int, int]] = list(
            zip(self._source.lengths, self._target.lengths, strict=True)
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> TranslationItem:
        return {"input_ids": self._source[index], "labels": self._target[index]}


def collate(items: Sequence[TranslationItem], pad_token_id: int) -> dict[str, torch.Tensor]:
    """A batch of pairs, padded on the right to its longest source and longest target.

    Args:
        items: encoded pairs, at least one.
        pad_token_id: fills up the source.

    Returns:
        ``input_ids`` and ``attention_mask`` ``(batch, source_time)``, the mask 1 for text and 0
        for padding, and ``labels`` ``(batch, target_time)`` with -100 for padding; all int64.

    Example:
        >>> items = [{"input_ids": [7, 2], "labels": [5, 2]}, {"input_ids": [2], "labels": [2]}]
        >>> collate(items, pad_token_id=0)["labels"]
        tensor([[   5,    2],
                [   2, -100]])
    """
    source = [item["input_ids"] for item in items]
    return {
        "input_ids": pad(source, pad_token_id),
        "attention_mask": token_mask(source),
        "labels": pad([item["labels"] for item in items], IGNORED_LABEL),
    }
