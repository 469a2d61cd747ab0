"""Byte-level BPE tokenizers for translation, trained on the corpus at hand.

Byte-level means that the smallest pieces are the 256 byte values. Any text in any script can be
written with them, so nothing is ever unknown, and decoding gives back the very same text.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
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

from headwise.tasks.corpora import Pair

PAD, BOS, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0, 1, 2, 3
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)


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
        folder = Path(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        if self.is_joint:
            self.source.save_pretrained(partial)
        else:
            self.source.save_pretrained(partial / "source")
            self.target.save_pretrained(partial / "target")
        # A folder that is not empty cannot be renamed over, so the old one steps aside first.
        old = folder.with_name(f"{folder.name}.old-{os.getpid()}")
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

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


def _train_bpe(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # A space in front of the text, so that its first word is the same subword as elsewhere; the
    # decoder takes exactly that one off again.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a subword seen once is the word itself: nothing to learn from it
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, SPECIAL_TOKENS.index(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,  # decoding must give back the text as it was
        split_special_tokens=True,
    )


def _encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    if not texts:
        return []
    return tokenizer(list(texts), return_attention_mask=False)["input_ids"]


def _load(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"{folder}: there is no tokenizer.json. Name a folder that "
            "TranslationTokenizer.save has written."
        )
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the Rust side raises nothing narrower
        raise ValueError(f"{folder}: the tokenizer cannot be read ({error})") from error
