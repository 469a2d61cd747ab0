"""Data set of encoded examples, and the batches that are made of them.

A pair is encoded as in RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692):
`<bos> first <eos> <eos> second <eos>`.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from torch.utils.data import Dataset

from headwise.data.encoded import encoded_column, pad, token_mask
from headwise.data.labelled.corpus import EXAMPLES, Example
from headwise.data.parts import digest_of
from headwise.data.tokenizers.tokenization import TextTokenizer


class ClassificationItem(TypedDict):
    """One encoded example."""

    input_ids: list[int]
    label: float  # number of the class, or the number that is predicted


class Examples(Dataset[ClassificationItem]):
    """Encoded examples; `classes` is None for a regression.

    Attributes:
        examples: the examples that were given.
        lengths: `max_length` for every example. So all batches have the same number of examples,
            of all lengths: a label may depend on the length (in SeLen it is the length), and
            batches of similar lengths would then be batches of one class.
        true_lengths: number of tokens of each example.
        cut: number of examples that were too long.
        labels: number of the class of each example, or the number that is predicted.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: TextTokenizer,
        classes: Sequence[str] | None,
        max_length: int,
    ) -> None:
        self.examples = examples
        self._tokenizer = tokenizer
        # Each text ends with <eos>.
        self._texts, self._pairs = (encoded_column(tokenizer, examples, side) for side in (0, 1))
        # A missing pair is an empty text, of which <eos> is left.
        self._has_pairs = any(example.pair is not None for example in examples[:1])
        self._max_length = max_length
        whole = 1 + self._texts.lengths + self._has_pairs * (1 + self._pairs.lengths)
        self.true_lengths = np.minimum(whole, max_length)
        self.lengths = np.full(len(examples), max_length)
        self.cut = int((whole > max_length).sum())
        numbers = {name: float(number) for number, name in enumerate(classes or ())}
        labels = (example.label for example in examples)
        self.labels = np.fromiter(
            (float(each) if classes is None else numbers[str(each)] for each in labels), float
        )

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> str:
        """Returns a hash of the examples."""
        return digest_of(self.examples, EXAMPLES)

    def __getitem__(self, index: int) -> ClassificationItem:
        text, pair = self._texts[index], self._pairs[index] if self._has_pairs else None
        first, second = fitted(len(text), None if pair is None else len(pair), self._max_length)
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        ids = [bos, *text[: first - 1], eos]
        if pair is not None and second is not None:
            ids += [eos, *pair[: second - 1], eos]
        return {"input_ids": ids, "label": float(self.labels[index])}


def fitted(text: int, pair: int | None, max_length: int) -> tuple[int, int | None]:
    """Returns how many tokens of a text and of the text paired with it an example keeps.

    Both numbers count the `<eos>`. Tokens of the longer text are cut off first.

    >>> fitted(10, None, 8), fitted(10, 3, 12), fitted(9, 8, 12), fitted(8, 9, 13)
    ((7, None), (7, 3), (5, 5), (5, 6))
    """
    over = 1 + text + (0 if pair is None else 1 + pair) - max_length
    if over <= 0:
        return text, pair
    if pair is None:
        return text - over, None
    room = max_length - 2
    half = room // 2
    if text <= half:
        return text, room - text
    if pair <= half:
        return room - pair, pair
    return (room - half, half) if text > pair else (half, room - half)


def collate_examples(
    items: Sequence[ClassificationItem], pad_token_id: int, label_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Joins examples into a batch, padded on the right to the longest of them.

    Returns:
        `input_ids` and `attention_mask` of shape `(batch, time)`, and `labels` of shape `(batch,)`.
    """
    rows = [item["input_ids"] for item in items]
    return {
        "input_ids": pad(rows, pad_token_id),
        "attention_mask": token_mask(rows),
        "labels": torch.tensor([item["label"] for item in items]).to(label_dtype),
    }
