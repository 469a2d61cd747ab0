"""Tokenizers, trained on the text at hand: byte-level BPE, or words.

Byte-level means that the smallest pieces are the 256 byte values. Any text in any script can be
written with them, so nothing is ever unknown, and decoding gives back the very same text. Words
are for texts that come tokenised, as WikiText does: they are what white space divides, and those
that the vocabulary lacks are ``<unk>``.

:class:`TranslationTokenizer` is for two languages, :class:`TextTokenizer` for one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise.tasks.text.corpora import Pair

PAD, BOS, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0, 1, 2, 3
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
MASK = "<mask>"  # id 4, in tokenizers of one language
TEXT_SPECIAL_TOKENS = (*SPECIAL_TOKENS, MASK)
TOKENIZER = "tokenizer"  # where the folder of a run has one


class TokenizerSettings(BaseModel):
    """Subword vocabularies, learned from the training part of the corpus."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["bpe"] = Field("bpe", description="byte-level byte-pair encoding")
    joint: bool = Field(
        True,
        description="one vocabulary for both languages (its embeddings can be shared), or one each",
    )
    vocab_size: int = Field(
        4000,
        description=f"number of subwords, at least {MIN_VOCAB_SIZE}; a small corpus may give fewer",
    )
    source_vocab_size: int | None = Field(
        None, description="size of the source vocabulary if not joint; default: vocab_size"
    )
    target_vocab_size: int | None = Field(
        None, description="size of the target vocabulary if not joint; default: vocab_size"
    )

    @model_validator(mode="after")
    def _check(self) -> TokenizerSettings:
        for name in ("vocab_size", "source_vocab_size", "target_vocab_size"):
            size = getattr(self, name)
            if size is not None and size < MIN_VOCAB_SIZE:
                raise ValueError(
                    f"{name} must be at least {MIN_VOCAB_SIZE}, but is {size}: the 256 bytes and "
                    f"the {len(SPECIAL_TOKENS)} special tokens take that many before any subword"
                )
            if size is not None and self.joint and name != "vocab_size":
                raise ValueError(
                    f"{name} is for separate vocabularies, but joint is true: set joint to false, "
                    "or the size of the joint vocabulary with vocab_size"
                )
        return self


class TranslationTokenizer:
    """The tokenizers of both languages; one and the same where the vocabulary is joint.

    Each is an ordinary ``PreTrainedTokenizerFast``, with ``<pad>`` 0, ``<bos>`` 1, ``<eos>`` 2 and
    ``<unk>`` 3 (which byte-level encoding never needs). Called on text it ends it with ``<eos>``;
    special tokens written out in a text are text like any other.

    Args:
        source: tokenizer of the source language.
        target: tokenizer of the target language; the same object means a joint vocabulary.

    Example:
        >>> pairs = [Pair("open the file", "ouvrir le fichier"), Pair("open it", "ouvrir ceci")]
        >>> tokenizer = TranslationTokenizer.train(pairs, TokenizerSettings(vocab_size=300))
        >>> ids = tokenizer.encode_target(["ouvrir", "le"])
        >>> [row[-1] for row in ids]
        [2, 2]
        >>> tokenizer.decode_target(ids)
        ['ouvrir', 'le']
    """

    def __init__(self, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast) -> None:
        self.source = source
        self.target = target
        self.pad_token_id: int = target.pad_token_id
        self.bos_token_id: int = target.bos_token_id
        self.eos_token_id: int = target.eos_token_id

    @classmethod
    def train(cls, pairs: Sequence[Pair], settings: TokenizerSettings) -> TranslationTokenizer:
        """Learn vocabularies from sentence pairs; the same pairs give the same vocabularies.

        Raises:
            ValueError: there are no pairs.
        """
        if not pairs:
            raise ValueError("pairs is empty: a tokenizer needs text to learn its subwords from")
        if settings.joint:
            joint = _train_bpe((text for pair in pairs for text in pair), settings.vocab_size)
            return cls(joint, joint)
        return cls(
            _train_bpe(
                (pair.source for pair in pairs), settings.source_vocab_size or settings.vocab_size
            ),
            _train_bpe(
                (pair.target for pair in pairs), settings.target_vocab_size or settings.vocab_size
            ),
        )

    @property
    def is_joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self.source is self.target

    @property
    def source_vocab_size(self) -> int:
        """Number of ids of the source tokenizer, special tokens included."""
        return len(self.source)

    @property
    def target_vocab_size(self) -> int:
        """Number of ids of the target tokenizer, special tokens included."""
        return len(self.target)

    def encode_source(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, ending with ``<eos>``."""
        return _encode(self.source, texts)

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, ending with ``<eos>``; the model itself puts ``<bos>`` in front."""
        return _encode(self.target, texts)

    def decode_target(self, ids: Sequence[Sequence[int]] | torch.Tensor) -> list[str]:
        """Texts of generated ids or of labels, ``(batch, time)`` or ragged.

        What follows the first ``<eos>``, special tokens and the -100 of padded labels are left
        out. Bytes that are no UTF-8, which an untrained model writes, become U+FFFD.
        """
        rows = ids.tolist() if isinstance(ids, torch.Tensor) else [list(row) for row in ids]
        for i, row in enumerate(rows):
            if self.eos_token_id in row:
                row = row[: row.index(self.eos_token_id)]
            rows[i] = [token for token in row if token >= 0]
        return [self.target.decode(row, skip_special_tokens=True) for row in rows]

    def save(self, folder: str | Path) -> None:
        """Write to a folder, which is replaced as a whole or not at all.

        A joint tokenizer is saved in the folder itself, separate ones in ``source`` and
        ``target`` in it; ``AutoTokenizer.from_pretrained`` reads each of them.
        """

        def write(partial: Path) -> None:
            if self.is_joint:
                self.source.save_pretrained(partial)
            else:
                self.source.save_pretrained(partial / "source")
                self.target.save_pretrained(partial / "target")

        _write_folder(Path(folder), write)

    @classmethod
    def load(cls, folder: str | Path) -> TranslationTokenizer:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: there is no tokenizer in the folder, or it is damaged.
        """
        folder = Path(folder)
        if (folder / "source").is_dir():
            return cls(_load(folder / "source"), _load(folder / "target"))
        joint = _load(folder)
        return cls(joint, joint)


class TextTokenizerSettings(BaseModel):
    """The vocabulary of one language, learned from the training part of the text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["bpe", "word"] = Field(
        "bpe",
        description="byte-level byte-pair encoding, or words as white space divides them, for text "
        "that comes tokenised",
    )
    vocab_size: int = Field(
        4000,
        description="number of subwords or words with the special tokens; little text gives fewer",
    )
    min_frequency: int = Field(
        2, ge=1, description="leave out subwords and words that are seen less often"
    )

    @model_validator(mode="after")
    def _check(self) -> TextTokenizerSettings:
        special = len(TEXT_SPECIAL_TOKENS)
        least = special + (256 if self.type == "bpe" else 1)
        if self.vocab_size < least:
            what = "the 256 bytes" if self.type == "bpe" else "a word"
            raise ValueError(
                f"vocab_size must be at least {least}, but is {self.vocab_size}: {what} and the "
                f"{special} special tokens take that many"
            )
        return self


class TextTokenizer:
    """The tokenizer of one language, for lines of text.

    An ordinary ``PreTrainedTokenizerFast``, with ``<pad>`` 0, ``<bos>`` 1, ``<eos>`` 2, ``<unk>`` 3
    and ``<mask>`` 4. ``<eos>`` stands for the end of a line. Special tokens written out in a text
    are text like any other; as words, they are unknown. The ids of words, and roughly those of
    subwords, are in order of falling frequency, as adaptive embeddings need them.

    Args:
        tokenizer: what does the work.

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
        self.unk_token_id: int = tokenizer.unk_token_id
        self.mask_token_id: int = tokenizer.mask_token_id

    @classmethod
    def train(cls, lines: Iterable[str], settings: TextTokenizerSettings) -> TextTokenizer:
        """Learn the vocabulary of lines of text; the same lines give the same vocabulary.

        Raises:
            ValueError: no line has text.
        """
        lines = [line for line in lines if line]
        if not lines:
            raise ValueError("lines is empty: a tokenizer needs text to learn its vocabulary from")
        if settings.type == "word":
            return cls(_train_words(lines, settings.vocab_size, settings.min_frequency))
        return cls(
            _train_bpe(lines, settings.vocab_size, TEXT_SPECIAL_TOKENS, settings.min_frequency)
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return len(self.tokenizer)

    @property
    def has_words(self) -> bool:
        """Whether the vocabulary is one of words, which does not keep all of a text."""
        return isinstance(self.tokenizer.backend_tokenizer.model, models.WordLevel)

    def encode(self, lines: Sequence[str], *, eos: bool = True) -> list[list[int]]:
        """Ids of each line, with ``<eos>`` at its end or (the start of a line) without."""
        rows = _encode(self.tokenizer, lines)
        return rows if eos else [row[:-1] for row in rows]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Text of each row of ids: ``<eos>`` ends a line, ``<unk>`` and ``<mask>`` stay.

        ``<pad>``, ``<bos>`` and the -100 of labels are left out. Bytes that are no UTF-8, which an
        untrained model writes, become U+FFFD.

        Example:
            >>> tokenizer = TextTokenizer.train(["a b"], TextTokenizerSettings(vocab_size=261))
            >>> tokenizer.decode([[4, *tokenizer.encode([" a"])[0], 0, 0]])
            ['<mask>  a']
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
            texts.append("\n".join(self.tokenizer.decode(line) for line in lines))
        return texts

    def save(self, folder: str | Path) -> None:
        """Write to a folder, which is replaced as a whole or not at all."""
        _write_folder(Path(folder), lambda partial: self.tokenizer.save_pretrained(partial))

    @classmethod
    def load(cls, folder: str | Path) -> TextTokenizer:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: there is no such tokenizer in the folder, or it is damaged.
        """
        tokenizer = _load(Path(folder))
        if tokenizer.mask_token_id is None:
            raise ValueError(
                f"{folder}: the tokenizer there has no {MASK}. Name a folder that "
                "TextTokenizer.save has written."
            )
        return cls(tokenizer)


def _train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    min_frequency: int = 2,  # a subword seen once is the word itself: nothing to learn from it
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # A space in front of the text, so that its first word is the same subword as elsewhere; the
    # decoder takes exactly that one off again.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer, special_tokens)


def _train_words(
    texts: Iterable[str], vocab_size: int, min_frequency: int
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    # The text's own <unk> is ours; other special tokens must not appear inside a line.
    others = [token for token in TEXT_SPECIAL_TOKENS if token != UNK]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(token, UNK) for token in others]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(TEXT_SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer, TEXT_SPECIAL_TOKENS)


def _finish(tokenizer: Tokenizer, special_tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """As Hugging Face knows it; called on a text, it ends it with ``<eos>``."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, SPECIAL_TOKENS.index(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        mask_token=MASK if MASK in special_tokens else None,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,  # decoding must give back the text as it was
        split_special_tokens=True,
    )


def _encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    if not texts:
        return []
    return tokenizer(list(texts), return_attention_mask=False)["input_ids"]


def _write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Have a folder written under another name, and put it in the place of the old one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    # A folder that is not empty cannot be renamed over, so the old one steps aside first.
    old = folder.with_name(f"{folder.name}.old-{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _load(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"{folder}: there is no tokenizer.json. Name a folder that the save method of a "
            "tokenizer has written."
        )
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the Rust side raises nothing narrower
        raise ValueError(f"{folder}: the tokenizer cannot be read ({error})") from error
