"""Data set of encoded examples, and the batches that are made of them.

A pair is encoded as in RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692):
`<bos> first <eos> <eos> second <eos>`.
"""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch.utils.data import Dataset

from headwise.tasks.text.encoded import Ragged, pad, token_mask
from headwise.tasks.text.labelled.corpus import Example
from headwise.tasks.text.tokenization import TextTokenizer


class ClassificationItem(TypedDict):
    """One encoded example."""

    input_ids: list[int]
    label: float  # number of the class, or the number that is predicted


class Examples(Dataset[ClassificationItem]):
    """Encoded examples.

    Args:
        examples: labelled texts, at least one.
        tokenizer: tokenizer that encodes the texts.
        classes: names of the classes in the order of the outputs of the model; None for a
            regression.
        max_length: largest number of tokens of an example; longer examples are cut.

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
        encode = tokenizer.encode  # each text ends with <eos>
        self._texts = Ragged(encode, [example.text for example in examples])
        self._pairs: Ragged | None = None
        if any(example.pair is not None for example in examples):
            self._pairs = Ragged(encode, [example.pair or "" for example in examples])
        pairs = self._pairs.lengths if self._pairs is not None else [None] * len(examples)
        self._kept = [
            fitted(text, pair, max_length)
            for text, pair in zip(self._texts.lengths, pairs, strict=True)
        ]
        self.true_lengths = [_length(*kept) for kept in self._kept]
        self.lengths = [max_length] * len(examples)
        whole = zip(self._texts.lengths, pairs, strict=True)
        self.cut = sum(kept != full for kept, full in zip(self._kept, whole, strict=True))
        numbers = {name: number for number, name in enumerate(classes or ())}
        self.labels = [
            float(example.label) if classes is None else float(numbers[str(example.label)])
            for example in examples
        ]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> ClassificationItem:
        first, second = self._kept[index]
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        ids = [bos, *self._texts[index][: first - 1], eos]
        if second is not None and self._pairs is not None:
            ids += [eos, *self._pairs[index][: second - 1], eos]
        return {"input_ids": ids, "label": self.labels[index]}


def _length(text: int, pair: int | None) -> int:
    """Returns the number of tokens of an example, given those of its texts with their `<eos>`."""
    return 1 + text + (0 if pair is None else 1 + pair)


def fitted(text: int, pair: int | None, max_length: int) -> tuple[int, int | None]:
    """Returns how many tokens of each text are kept; the longer text is cut first.

    Args:
        text, pair: numbers of tokens of the texts, each with its `<eos>`.
        max_length: largest number of tokens of the example.

    >>> fitted(10, None, 8), fitted(10, 3, 12), fitted(9, 8, 12)
    ((7, None), (7, 3), (5, 5))
    """
    over = _length(text, pair) - max_length
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
    return room - half, half


def collate_examples(
    items: Sequence[ClassificationItem], pad_token_id: int, label_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Joins encoded examples into a batch, padded on the right to the longest of them.

    Args:
        items: encoded examples, at least one.
        pad_token_id: id of the padding.
        label_dtype: int64 for classes, float32 for numbers.

    Returns:
        `input_ids` and `attention_mask` of shape `(batch, time)`, and `labels` of shape `(batch,)`.
    """
    rows = [item["input_ids"] for item in items]
    return {
        "input_ids": pad(rows, pad_token_id),
        "attention_mask": token_mask(rows),
        "labels": torch.tensor([item["label"] for item in items]).to(label_dtype),
    }
