"""Data set of encoded sentence pairs."""

from collections.abc import Sequence

import numpy as np
from torch.utils.data import Dataset

from headwise.data.encoded import TokenItem, encoded_column
from headwise.data.pairs.corpus import PAIRS, Pair
from headwise.data.parts import digest_of
from headwise.data.tokenizers.tokenization import TranslationTokenizer


class TranslationDataset(Dataset[TokenItem]):
    """Encoded sentence pairs; both sides end with `<eos>`.

    Attributes:
        pairs: the pairs that were given.
        lengths: number of source ids and of target ids of each pair, `<eos>` included, of shape
            `(pairs, 2)`, by which a sampler puts pairs of similar length into one batch.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: TranslationTokenizer) -> None:
        self.pairs = pairs
        self._source = encoded_column(tokenizer.source, pairs, 0)
        self._target = encoded_column(tokenizer.target, pairs, 1)
        self.lengths = np.stack([self._source.lengths, self._target.lengths], axis=1)

    def __len__(self) -> int:
        return len(self.lengths)

    def digest(self) -> str:
        """Returns a hash of the pairs."""
        return digest_of(self.pairs, PAIRS)

    def __getitem__(self, index: int) -> TokenItem:
        return {"input_ids": self._source[index], "labels": self._target[index]}
