"""Data sets of running text, cut or packed into blocks, and the batches that are made of them."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from headwise.data.encoded import Ragged, TokenItem, pad, token_mask
from headwise.data.running.documents import Document, StoredDocuments, marked_lines
from headwise.data.running.masking import MaskingSettings, mask_tokens
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.ops.labels import IGNORED_LABEL

# --- blocks of language modelling -------------------------------------------------------------


def encoded_lines(
    tokenizer: TextTokenizer, documents: Sequence[Document], *, packed: bool = False
) -> Ragged:
    """Encodes the lines of documents: into the cache where these stand there too, else in memory.

    If they are `packed`, blank lines are left out, and one stands in front of each document.
    """

    def lines() -> Iterator[str]:
        for line, begins in marked_lines(documents):
            if packed and begins:
                yield ""  # encoded as <eos> alone, which separates two documents
            if line or not packed:
                yield line

    made_of = [documents.digest, packed] if isinstance(documents, StoredDocuments) else None
    return Ragged.of(tokenizer, lines, made_of)


class TextBlocks(Dataset[Tensor]):
    """A text as one stream of tokens that is cut into blocks.

    Item `i` is block `i` of the stream, with the token before it in front.

    Attributes:
        documents: the documents that were given.
        block_length: number of tokens that are predicted in a block.
        lengths: the same for each block; the last block may have fewer.
    """

    def __init__(
        self, documents: Sequence[Document], tokenizer: TextTokenizer, block_length: int
    ) -> None:
        self.documents = documents
        self._join = tokenizer.join
        self.block_length = block_length
        self._lines = encoded_lines(tokenizer, documents)
        self._start = torch.tensor([tokenizer.eos_token_id])
        begins = np.arange(0, len(self._lines.ids), block_length)
        self.lengths = np.minimum(block_length, len(self._lines.ids) - begins)

    @property
    def stream(self) -> Tensor:
        """All tokens of the text after an `<eos>`, of shape `(tokens + 1,)`."""
        return torch.cat([self._start.int(), self._lines.ids.int()])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(f"index is {index}, expected that of one of {len(self)} blocks")
        begin = index * self.block_length
        block = self._lines.ids[max(0, begin - 1) : begin + self.block_length].long()
        return block if index else torch.cat([self._start, block])

    def words(self) -> Tensor:
        """Returns words per token, of shape `(tokens,)`.

        Line ends count as words. The words of a line are shared equally among its tokens.
        """
        return self._per_token(lambda line: len(line.split()) + 1)

    def utf8_bytes(self) -> Tensor:
        """Returns bytes of UTF-8 per token, of shape `(tokens,)`.

        A line end is one byte. The bytes of a line are shared equally among its tokens.
        """
        return self._per_token(lambda line: len(line.encode()) + 1)

    def _per_token(self, count: Callable[[str], int]) -> Tensor:
        """A number for each line, of whole words, shared equally among its tokens."""
        counts = [count(self._join(line)) for line, _ in marked_lines(self.documents)]
        tokens = torch.from_numpy(self._lines.lengths).long()
        return (torch.tensor(counts, dtype=torch.float64) / tokens).repeat_interleave(tokens)


def collate_blocks(items: Sequence[Tensor], pad_token_id: int) -> dict[str, Tensor]:
    """Joins blocks into a batch, padded on the right to the longest of them.

    Returns:
        `input_ids` and `labels`, both of shape `(batch, time)`, with the same tokens; labels are
        -100 at the first position, which nothing predicts, and at padding. Only a batch with
        padding has an `attention_mask`, which is 1 for text.
    """
    rows = [item.tolist() for item in items]
    batch = {
        "input_ids": pad(rows, pad_token_id),
        "labels": pad([[IGNORED_LABEL, *row[1:]] for row in rows], IGNORED_LABEL),
    }
    if len({len(row) for row in rows}) > 1:
        batch["attention_mask"] = token_mask(rows)
    return batch


# --- blocks of masked language modelling ------------------------------------------------------


class MaskedBlocks(Dataset[TokenItem]):
    """Blocks of text with masks.

    The masks depend only on epoch, seed, stream and index, so that a resumed run sees the same ones
    as an uninterrupted one.

    Args:
        ids: tokens of the text, of shape `(tokens,)`.
        blocks: for each block the position of its first token and the position after its last, of
            shape `(blocks, 2)`.
        settings: shares of masked tokens, and the seed.
        tokenizer: has the ids that begin each block and that hide a token. Its special tokens are
            neither hidden nor replace a hidden token; all others are words.
        stream: number that makes the masks of data sets with the same seed differ.
        dynamic: whether the masks are drawn anew in each epoch (RoBERTa's dynamic masking).
    """

    def __init__(
        self,
        ids: Tensor,
        blocks: NDArray[np.int64],
        settings: MaskingSettings,
        tokenizer: TextTokenizer,
        *,
        stream: int = 0,
        dynamic: bool = False,
    ) -> None:
        assert tokenizer.mask_token_id is not None
        special = tokenizer.tokenizer.all_special_ids
        self.is_word = ~np.isin(np.arange(tokenizer.vocab_size), special)
        self.ids = ids
        self.blocks = blocks
        self.settings = settings
        self.bos_id = tokenizer.bos_token_id
        self.mask_id = tokenizer.mask_token_id
        self.stream = stream
        self.dynamic = dynamic
        self.epoch = 0
        self.lengths = 1 + blocks[:, 1] - blocks[:, 0]

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose masks are drawn; masks that are not dynamic stay as they are."""
        if self.dynamic:
            self.epoch = epoch

    def text(self, index: int) -> list[int]:
        """Returns the ids of a block before any token is hidden."""
        start, end = self.blocks[index].tolist()
        return [self.bos_id, *self.ids[start:end].tolist()]

    def __getitem__(self, index: int) -> TokenItem:
        return self.draw(index, self.epoch)

    def draw(self, index: int, epoch: int) -> TokenItem:
        """Returns a block with the masks of an epoch."""
        index = range(len(self))[index]  # a negative index is the same block
        key = (self.settings.seed, self.stream, epoch, index)
        inputs, labels = mask_tokens(
            np.array(self.text(index)),
            self.settings,
            is_word=self.is_word,
            mask_id=self.mask_id,
            generator=np.random.default_rng(key),
        )
        return {"input_ids": inputs.tolist(), "labels": labels.tolist()}
