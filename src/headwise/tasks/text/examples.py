"""Labelled texts, encoded: one by one.

A pair is read as RoBERTa reads it (Liu et al. 2019, https://arxiv.org/abs/1907.11692):
`<bos> first <eos> <eos> second <eos>`.
"""

from collections.abc import Sequence
from typing import TypedDict

from torch.utils.data import Dataset

from headwise.tasks.text.encoded import Ragged
from headwise.tasks.text.labelled import Example
from headwise.tasks.text.tokenization import TextTokenizer


class ClassificationItem(TypedDict):
    """One encoded example."""

    input_ids: list[int]
    label: float  # the number of a class, or the number that is to be predicted


class Examples(Dataset[ClassificationItem]):
    """Labelled texts, encoded.

    Args:
        examples: at least one.
        tokenizer: encodes the texts.
        classes: names of the classes in the order of the model's outputs; None for a regression.
        max_length: in tokens; what is longer is cut.

    Attributes:
        examples: as given.
        lengths: `max_length` for every example, so that batches are of one size, and drawn from
            all lengths alike. A label may go with the length (that of SeLen is the length), and
            batches of similar lengths would be batches of one class.
        true_lengths: those of the examples themselves, in tokens.
        cut: how many examples were too long.
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
        encode = tokenizer.encode  # <eos> at the end of each
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
    """Tokens of an example whose texts have so many, each with its `<eos>`."""
    return 1 + text + (0 if pair is None else 1 + pair)


def fitted(text: int, pair: int | None, max_length: int) -> tuple[int, int | None]:
    """How many tokens of each text remain so that the whole fits; the longer is cut first.

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
