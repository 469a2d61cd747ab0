"""Tokenizers that are trained on the training text: byte-level BPE, or words.

The smallest units of byte-level BPE are the 256 byte values, which can represent any text in any
script. So no text is unknown, and decoding gives back exactly the same text. Vocabularies of words
are for texts that are already tokenised, as WikiText is: white space divides the words, and a word
that the vocabulary lacks is `<unk>`.

`TranslationTokenizer` is for two languages, `TextTokenizer` for one.
"""

from __future__ import annotations

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

from headwise.files import written_whole

PAD, BOS, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0, 1, 2, 3
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
MASK = "<mask>"  # id 4, in tokenizers of one language
TEXT_SPECIAL_TOKENS = (*SPECIAL_TOKENS, MASK)
TOKENIZER = "tokenizer"  # folder of the tokenizer inside the folder of a run


class TokenizerSettings(BaseModel):
    """Settings of the vocabularies of two languages, learned from the training pairs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["bpe"] = Field("bpe", description="Selects byte-level byte-pair encoding.")
    joint: bool = Field(
        True,
        description="Whether both languages have one vocabulary, whose embeddings can be shared, "
        "or each has its own.",
    )
    vocab_size: int = Field(
        4000,
        description=f"Number of subwords, at least {MIN_VOCAB_SIZE}; a small corpus gives fewer.",
    )
    source_vocab_size: int | None = Field(
        None, description="Size of the source vocabulary if joint is false. Default: vocab_size."
    )
    target_vocab_size: int | None = Field(
        None, description="Size of the target vocabulary if joint is false. Default: vocab_size."
    )

    @model_validator(mode="after")
    def _check(self) -> TokenizerSettings:
        for name in ("vocab_size", "source_vocab_size", "target_vocab_size"):
            size = getattr(self, name)
            if size is not None and size < MIN_VOCAB_SIZE:
                raise ValueError(
                    f"{name} is {size}, expected at least {MIN_VOCAB_SIZE}: the 256 bytes and the "
                    f"{len(SPECIAL_TOKENS)} special tokens are part of every vocabulary"
                )
            if size is not None and self.joint and name != "vocab_size":
                raise ValueError(
                    f"{name} is {size} and joint is true, expected it only for separate "
                    "vocabularies: set joint to false, or give the size of the joint vocabulary as "
                    "vocab_size"
                )
        return self


class TranslationTokenizer:
    """The tokenizers of the source and the target language.

    Each is an ordinary `PreTrainedTokenizerFast`, with `<pad>` 0, `<bos>` 1, `<eos>` 2 and
    `<unk>` 3 (which byte-level encoding never needs). Encoded texts end with `<eos>`. A special
    token that is written out in a text is ordinary text.

    Args:
        source: tokenizer of the source language.
        target: tokenizer of the target language; the same object if the vocabulary is joint.

    Example:
        >>> pairs = [("open the file", "ouvrir le fichier"), ("open it", "ouvrir ceci")]
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
    def train(
        cls, pairs: Sequence[tuple[str, str]], settings: TokenizerSettings
    ) -> TranslationTokenizer:
        """Learns the vocabularies of sentence pairs; equal pairs give equal vocabularies.

        Args:
            pairs: sentences with their translations.
            settings: sizes of the vocabularies.

        Raises:
            ValueError: there are no pairs.
        """
        if not pairs:
            raise ValueError("pairs is empty, expected text to learn subwords from")
        if settings.joint:
            joint = _train_bpe((text for pair in pairs for text in pair), settings.vocab_size)
            return cls(joint, joint)
        return cls(
            _train_bpe(
                (source for source, _ in pairs), settings.source_vocab_size or settings.vocab_size
            ),
            _train_bpe(
                (target for _, target in pairs), settings.target_vocab_size or settings.vocab_size
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
        """Returns the ids of each text, which end with `<eos>`."""
        return _encode(self.source, texts)

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, which end with `<eos>`; the model prepends `<bos>`."""
        return _encode(self.target, texts)

    def decode_target(self, ids: Sequence[Sequence[int]] | torch.Tensor) -> list[str]:
        """Returns the texts of generated ids or of labels.

        Everything after the first `<eos>`, special tokens, and the -100 of padded labels are left
        out. Bytes that are not UTF-8, which an untrained model writes, become U+FFFD.

        Args:
            ids: rows of ids, of shape `(batch, time)`; as lists they may differ in length.
        """
        rows = ids.tolist() if isinstance(ids, torch.Tensor) else [list(row) for row in ids]
        for i, row in enumerate(rows):
            if self.eos_token_id in row:
                row = row[: row.index(self.eos_token_id)]
            rows[i] = [token for token in row if token >= 0]
        return [self.target.decode(row, skip_special_tokens=True) for row in rows]

    def save(self, folder: str | Path) -> None:
        """Saves the tokenizers to a folder, which is replaced as a whole or not at all.

        A joint tokenizer is saved in the folder itself, separate ones in its folders `source` and
        `target`. `AutoTokenizer.from_pretrained` can read each of them.
        """
        with written_whole(Path(folder)) as partial:
            if self.is_joint:
                self.source.save_pretrained(partial)
            else:
                self.source.save_pretrained(partial / "source")
                self.target.save_pretrained(partial / "target")

    @classmethod
    def load(cls, folder: str | Path) -> TranslationTokenizer:
        """Loads the tokenizer that `save` has written.

        Raises:
            ValueError: there is no tokenizer in the folder, or it is damaged.
        """
        folder = Path(folder)
        if (folder / "source").is_dir():
            return cls(_load(folder / "source"), _load(folder / "target"))
        joint = _load(folder)
        return cls(joint, joint)


class TextTokenizerSettings(BaseModel):
    """Settings of the vocabulary of one language, learned from the training part of the text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["bpe", "word"] = Field(
        "bpe",
        description="What the tokens are. bpe: subwords of byte-level byte-pair encoding; word: "
        "the words between white space, for text that is already tokenised.",
    )
    vocab_size: int = Field(
        4000,
        description="Number of subwords or words, special tokens included; little text gives "
        "fewer.",
    )
    min_frequency: int = Field(
        2, ge=1, description="Subwords and words that occur less often than this are left out."
    )

    @model_validator(mode="after")
    def _check(self) -> TextTokenizerSettings:
        special = len(TEXT_SPECIAL_TOKENS)
        least = special + (256 if self.type == "bpe" else 1)
        if self.vocab_size < least:
            units = "the 256 bytes" if self.type == "bpe" else "a word"
            raise ValueError(
                f"vocab_size is {self.vocab_size}, expected at least {least}: {units} and the "
                f"{special} special tokens are part of every vocabulary"
            )
        return self


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
        self.unk_token_id: int = tokenizer.unk_token_id
        self.mask_token_id: int = tokenizer.mask_token_id

    @classmethod
    def train(cls, lines: Iterable[str], settings: TextTokenizerSettings) -> TextTokenizer:
        """Learns the vocabulary of lines of text; equal lines give equal vocabularies.

        Raises:
            ValueError: no line has text.
        """
        lines = [line for line in lines if line]
        if not lines:
            raise ValueError("lines is empty, expected text to learn a vocabulary from")
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
        """Whether the vocabulary is one of words, from which a text cannot be restored exactly."""
        return isinstance(self.tokenizer.backend_tokenizer.model, models.WordLevel)

    def encode(self, lines: Sequence[str], *, eos: bool = True) -> list[list[int]]:
        """Returns the ids of each line; `eos=False` leaves out the `<eos>` at its end."""
        rows = _encode(self.tokenizer, lines)
        return rows if eos else [row[:-1] for row in rows]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Returns the text of each row of ids: `<eos>` ends a line, `<unk>` and `<mask>` stay.

        `<pad>`, `<bos>` and the -100 of labels are left out. Bytes that are not UTF-8, which an
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
        """Saves the tokenizer to a folder, which is replaced as a whole or not at all."""
        with written_whole(Path(folder)) as partial:
            self.tokenizer.save_pretrained(partial)

    @classmethod
    def load(cls, folder: str | Path) -> TextTokenizer:
        """Loads the tokenizer that `save` has written.

        Raises:
            ValueError: there is no tokenizer of text in the folder, or it is damaged.
        """
        tokenizer = _load(Path(folder))
        if tokenizer.mask_token_id is None:
            raise ValueError(
                f"folder is {folder}, expected the tokenizer of a text: the one there has no "
                f"{MASK}; name a folder that `TextTokenizer.save` has written"
            )
        return cls(tokenizer)


def _train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    min_frequency: int = 2,  # a subword seen once is the word itself: nothing to learn from it
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # A space before the text makes its first word the same subword as elsewhere; the decoder
    # removes exactly this space.
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
    """Returns the tokenizer as one of the transformers library, which ends texts with `<eos>`."""
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


def _load(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"folder is {folder}, expected one with tokenizer.json: name a folder that the method "
            "`save` of a tokenizer has written"
        )
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the Rust library raises nothing narrower
        raise ValueError(
            f"folder is {folder}, expected a tokenizer that can be read: {error}"
        ) from error
