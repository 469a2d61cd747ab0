"""Tokenizers of texts: byte-level BPE or words, learned from the training text, or ready-made.

The smallest units of byte-level BPE are the 256 byte values, which can represent any text in any
script. So no text is unknown, and decoding gives back exactly the same text. Vocabularies of words
are for texts that are already tokenised, as WikiText is: white space divides the words, and a word
that the vocabulary lacks is `<unk>`. Vocabularies of pieces are such too, for texts whose words are
in pieces already, which decoding joins. `vocabularies` makes all of these.

`TextTokenizer` is for one language, and `TranslationTokenizer` has one for each of two.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import cast

import torch
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from headwise.data.tokenizers.settings import (
    SPECIAL_TOKENS,
    TEXT_SPECIAL_TOKENS,
    Role,
    TextTokenizerSettings,
    TokenizerSettings,
)
from headwise.data.tokenizers.vocabularies import (
    has_pieces,
    joined,
    read_tokenizer,
    ready_made,
    token_names,
    train_bpe,
    train_words,
)
from headwise.files import written_whole

TOKENIZER = "tokenizer"  # folder of the tokenizer inside the folder of a run


class TextTokenizer:
    """The tokenizer of one language, for lines of text.

    It wraps an ordinary `PreTrainedTokenizerFast`, with `<pad>` 0, `<bos>` 1, `<eos>` 2, `<unk>` 3
    and `<mask>` 4. `<eos>` is the end of a line. A special token that is written out in a text is
    ordinary text for subwords, and an unknown word for words. The ids of words, and roughly those
    of subwords, are in the order of falling frequency, which adaptive embeddings need.

    Args:
        tokenizer: tokenizer of the transformers library, with these special tokens.

    Example:
        >>> lines = ["open the file", "close the file", "open it"]
        >>> tokenizer = TextTokenizer.train(lines, TextTokenizerSettings(vocab_size=300))
        >>> ids = tokenizer.encode(["open it"])
        >>> ids[0][-1], tokenizer.decode(ids)
        (2, ['open it'])
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.pad_token_id: int = tokenizer.pad_token_id
        self.bos_token_id: int = tokenizer.bos_token_id
        self.eos_token_id: int = tokenizer.eos_token_id
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.mask_token_id: int | None = tokenizer.mask_token_id

    @classmethod
    def train(cls, lines: Iterable[str], settings: TextTokenizerSettings) -> "TextTokenizer":
        """Learns the vocabulary of lines of text; equal lines give equal vocabularies."""
        lines = filter(None, lines)
        if (first := next(lines, None)) is None:
            raise ValueError("lines is empty, expected text to learn a vocabulary from")
        lines = chain([first], lines)
        how = (settings.vocab_size, TEXT_SPECIAL_TOKENS, settings.min_frequency)
        if settings.type == "bpe":
            return cls(train_bpe(lines, *how))
        marks = settings.marks if settings.type == "presegmented" else None
        return cls(train_words(lines, *how, marks))

    @classmethod
    def ready_made(cls, settings: TextTokenizerSettings, *, mask: bool = False) -> "TextTokenizer":
        """Loads the tokenizer that the settings name; `mask` says whether it needs a mask."""
        assert settings.pretrained is not None
        needed: tuple[Role, ...] = ("pad", "bos", "eos", *(("mask",) if mask else ()))
        return cls(ready_made(settings.pretrained, settings.special_tokens, needed))

    @cached_property
    def names(self) -> dict[int, str]:
        """Each token as a person reads it."""
        return token_names(self.tokenizer)

    @property
    def state(self) -> str:
        """What tells the vocabulary from others."""
        return self.tokenizer.backend_tokenizer.to_str()

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included, and gaps among them."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @property
    def has_words(self) -> bool:
        """Whether the vocabulary is one of words, from which a text cannot be restored exactly."""
        is_word_level = isinstance(self.tokenizer.backend_tokenizer.model, models.WordLevel)
        return is_word_level and not has_pieces(self.tokenizer)

    def is_unknown(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns for each of some ids whether it is `<unk>`, of the same shape."""
        if self.unk_token_id is None:
            return torch.zeros_like(ids, dtype=torch.bool)
        return ids == self.unk_token_id

    def join(self, line: str) -> str:
        """Returns a line with whole words, if its words are in pieces."""
        return joined(self.tokenizer, line)

    def encode(self, lines: Sequence[str], *, eos: bool = True) -> list[list[int]]:
        """Returns the ids of each line; `eos=False` leaves out the `<eos>` at its end."""
        # By the library of transformers' tokenizer, which also computes no places in the text: 1.4
        # times as fast.
        backend = self.tokenizer.backend_tokenizer
        backend.encode_special_tokens = True  # one that is written out in a text is text
        rows = [encoded.ids for encoded in backend.encode_batch_fast(list(lines))]
        return rows if eos else [row[:-1] for row in rows]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Returns the text of each row of ids: `<eos>` ends a line, `<unk>` and `<mask>` stay.

        `<pad>`, `<bos>` and the -100 of labels are left out. Bytes that are not UTF-8, which an
        untrained model writes, become U+FFFD.
        """
        left_out = {self.pad_token_id, self.bos_token_id}
        texts = []
        for row in rows:
            lines: list[list[int]] = [[]]
            for token in row:
                if token == self.eos_token_id:
                    lines.append([])
                elif token >= 0 and token not in left_out:
                    lines[-1].append(token)
            if len(lines) > 1 and not lines[-1]:
                lines.pop()
            texts.append("\n".join(self.decode_line(line) for line in lines))
        return texts

    def decode_line(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Returns the text of ids without a line end among them."""
        # The decoder of pieces that end in @@ fails without any.
        decode = self.tokenizer.decode
        return cast(str, decode(ids, skip_special_tokens=skip_special_tokens)) if ids else ""

    def save(self, folder: str | Path) -> None:
        """Saves the tokenizer to a folder, which is replaced as a whole or not at all."""
        with written_whole(Path(folder)) as partial:
            _save(self.tokenizer, partial)

    @classmethod
    def load(cls, folder: str | Path) -> "TextTokenizer":
        """Loads the tokenizer that `save` has written, or raises `ValueError`."""
        return cls(_load(Path(folder)))


class TranslationTokenizer:
    """The tokenizers of the source and the target language, which have no `<mask>`.

    Args:
        source: tokenizer of the source language.
        target: tokenizer of the target language; the same object if the vocabulary is joint.

    Example:
        >>> pairs = [("open the file", "ouvrir le fichier"), ("open it", "ouvrir ceci")]
        >>> tokenizer = TranslationTokenizer.train(pairs, TokenizerSettings(vocab_size=300))
        >>> ids = tokenizer.target.encode(["ouvrir", "le"])
        >>> [row[-1] for row in ids]
        [2, 2]
        >>> tokenizer.decode_target(ids)
        ['ouvrir', 'le']
    """

    def __init__(self, source: TextTokenizer, target: TextTokenizer) -> None:
        self.source = source
        self.target = target
        self.pad_token_id = target.pad_token_id
        self.bos_token_id = target.bos_token_id
        self.eos_token_id = target.eos_token_id

    @classmethod
    def train(
        cls, pairs: Sequence[tuple[str, str]], settings: TokenizerSettings
    ) -> "TranslationTokenizer":
        """Learns the vocabularies of sentence pairs; equal pairs give equal vocabularies."""
        if not pairs:
            raise ValueError("pairs is empty, expected text to learn subwords from")
        if settings.joint:
            texts = (text for pair in pairs for text in pair)
            joint = _learn(texts, settings.vocab_size, settings)
            return cls(joint, joint)
        sizes = (settings.source_vocab_size, settings.target_vocab_size)
        source, target = (
            _learn((pair[side] for pair in pairs), size or settings.vocab_size, settings)
            for side, size in enumerate(sizes)
        )
        return cls(source, target)

    @classmethod
    def ready_made(cls, settings: TokenizerSettings) -> "TranslationTokenizer":
        """Loads the tokenizer that the settings name, for both languages."""
        assert settings.pretrained is not None
        found = ready_made(settings.pretrained, settings.special_tokens, ("pad", "bos", "eos"))
        if found.bos_token_id == found.eos_token_id:
            raise ValueError(
                f"tokenizer.pretrained is {settings.pretrained}, whose bos and eos are the same "
                f"token {found.eos_token!r}: a translation would end where it begins; set "
                f"tokenizer.special_tokens={{bos: <bos>}}"
            )
        joint = TextTokenizer(found)
        return cls(joint, joint)

    @property
    def is_joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self.source is self.target

    @property
    def state(self) -> str:
        """What tells the vocabularies from others."""
        return f"{self.source.state}\0{self.target.state}"

    def decode_target(self, ids: Sequence[Sequence[int]] | torch.Tensor) -> list[str]:
        """Returns the texts of generated ids or of labels, rows of shape `(batch, time)`.

        Everything after the first `<eos>`, special tokens, and the -100 of padded labels are left
        out. Bytes that are not UTF-8, which an untrained model writes, become U+FFFD.
        """
        rows = ids.tolist() if isinstance(ids, torch.Tensor) else [list(row) for row in ids]
        for i, row in enumerate(rows):
            if self.eos_token_id in row:
                row = row[: row.index(self.eos_token_id)]
            rows[i] = [token for token in row if token >= 0]
        return [self.target.decode_line(row, skip_special_tokens=True) for row in rows]

    def save(self, folder: str | Path) -> None:
        """Saves the tokenizers to a folder, which is replaced as a whole or not at all.

        A joint tokenizer is saved in the folder itself, separate ones in its folders `source` and
        `target`. `AutoTokenizer.from_pretrained` can read each of them.
        """
        if self.is_joint:
            self.source.save(folder)
            return
        with written_whole(Path(folder)) as partial:
            _save(self.source.tokenizer, partial / "source")
            _save(self.target.tokenizer, partial / "target")

    @classmethod
    def load(cls, folder: str | Path) -> "TranslationTokenizer":
        """Loads the tokenizer that `save` has written, or raises `ValueError`."""
        folder = Path(folder)
        if (folder / "source").is_dir():
            return cls(TextTokenizer.load(folder / "source"), TextTokenizer.load(folder / "target"))
        joint = TextTokenizer.load(folder)
        return cls(joint, joint)


def _learn(texts: Iterable[str], vocab_size: int, settings: TokenizerSettings) -> "TextTokenizer":
    if settings.type == "presegmented":
        return TextTokenizer(train_words(texts, vocab_size, SPECIAL_TOKENS, marks=settings.marks))
    return TextTokenizer(train_bpe(texts, vocab_size))


def _save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    tokenizer.save_pretrained(folder)


def _load(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"folder is {folder}, expected one with tokenizer.json: name a folder that the method "
            "`save` of a tokenizer has written"
        )
    try:
        return read_tokenizer(folder)
    except Exception as error:  # the Rust library raises nothing narrower
        raise ValueError(
            f"folder is {folder}, expected a tokenizer that can be read: {error}"
        ) from error
