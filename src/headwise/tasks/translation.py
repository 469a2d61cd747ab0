"""Translation: from a corpus to batches, and from translations to scores.

The pieces, each in a file of its own and all importable from here:

- :mod:`headwise.tasks.corpora`: settings and loading of parallel corpora;
- :mod:`headwise.tasks.tokenization`: BPE vocabularies;
- :mod:`headwise.tasks.metrics`: BLEU, chrF and significance.

Example:
    >>> from headwise.tasks.translation import *
    >>> pairs = [Pair("open the file", "ouvrir le fichier"), Pair("open it", "ouvrir ceci")]
    >>> tokenizer = TranslationTokenizer.train(pairs, TokenizerSettings(vocab_size=270))
    >>> dataset = TranslationDataset(pairs, tokenizer)
    >>> batch = collate([dataset[0], dataset[1]], tokenizer.pad_token_id)
    >>> sorted(batch), len(batch["labels"])
    (['attention_mask', 'input_ids', 'labels'], 2)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypedDict

import torch
from torch.utils.data import Dataset

from headwise.tasks.corpora import (
    Corpus,
    CorpusNotes,
    CorpusSettings,
    FilesCorpus,
    HubCorpus,
    InterfaceStringsCorpus,
    Pair,
    PartCounts,
    TextFiles,
    load_corpus,
)
from headwise.tasks.metrics import (
    Comparison,
    EvaluationSettings,
    TranslationScore,
    compare_to_baseline,
    score,
)
from headwise.tasks.sources import CorpusError
from headwise.tasks.tokenization import TokenizerSettings, TranslationTokenizer

__all__ = [
    "Comparison",
    "Corpus",
    "CorpusError",
    "CorpusNotes",
    "CorpusSettings",
    "EvaluationSettings",
    "FilesCorpus",
    "HubCorpus",
    "InterfaceStringsCorpus",
    "Pair",
    "PartCounts",
    "TextFiles",
    "TokenizerSettings",
    "TranslationDataset",
    "TranslationItem",
    "TranslationScore",
    "TranslationTokenizer",
    "collate",
    "compare_to_baseline",
    "load_corpus",
    "score",
]

IGNORED_LABEL = -100  # what PyTorch's cross entropy leaves out


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
        lengths: for each pair its number of source and of target ids, ``<eos>`` included; what a
            sampler needs to put pairs of similar length together.

    Raises:
        ValueError: there are no pairs.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: TranslationTokenizer) -> None:
        if not pairs:
            raise ValueError("pairs is empty: there is nothing to train or evaluate on")
        self._source = _Ragged(tokenizer.encode_source, [pair.source for pair in pairs])
        self._target = _Ragged(tokenizer.encode_target, [pair.target for pair in pairs])
        self.lengths: list[tuple[int, int]] = list(
            zip(self._source.lengths, self._target.lengths, strict=True)
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> TranslationItem:
        return {"input_ids": self._source[index], "labels": self._target[index]}


class _Ragged:
    """Lists of ids of any length in one tensor.

    As Python lists, one side of WMT14 (130 million subwords) would take 5 GB, and every worker of
    a data loader would end up with a copy; a tensor takes a tenth of that and is shared.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], texts: list[str]) -> None:
        ids = array("i")
        self.lengths: list[int] = []
        for start in range(0, len(texts), 10_000):  # in pieces, so the lists never all exist
            for row in encode(texts[start : start + 10_000]):
                ids.extend(row)
                self.lengths.append(len(row))
        # From the array's own memory: torch.tensor would first make a list of Python numbers.
        self.ids = torch.frombuffer(ids, dtype=torch.int32) if ids else torch.empty(0).int()
        self.ends = torch.tensor(list(accumulate(self.lengths)))

    def __getitem__(self, index: int) -> list[int]:
        if not -len(self.ends) <= index < len(self.ends):
            raise IndexError(f"index {index} is out of range for {len(self.ends)} pairs")
        index %= len(self.ends)
        start = self.ends[index - 1] if index else 0
        return self.ids[start : self.ends[index]].tolist()


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
        "input_ids": _pad(source, pad_token_id),
        "attention_mask": _pad([[1] * len(row) for row in source], 0),
        "labels": _pad([item["labels"] for item in items], IGNORED_LABEL),
    }


def _pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])
