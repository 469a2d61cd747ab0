"""Settings of vocabularies: learned from the training text, or ready-made."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from headwise.settings import FrozenSettings

PAD, BOS, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0, 1, 2, 3
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
MASK = "<mask>"  # id 4, in tokenizers of one language
TEXT_SPECIAL_TOKENS = (*SPECIAL_TOKENS, MASK)

Marks = Literal["@@", "▁"]
Role = Literal["pad", "bos", "eos", "unk", "mask"]

_MOST_TOKENS = 10_000_000


class VocabularySettings(FrozenSettings):
    """The settings of vocabularies that somebody else has made, for one language or two."""

    marks: Marks = "@@"
    """With `type: presegmented`, how the pieces of a word are marked: `@@` stands at the end of
    each but the last, as subword-nmt writes them, or `▁` at the beginning of the first, as
    sentencepiece does. Pieces are joined before anything is scored."""
    pretrained: str | None = None
    """A ready-made tokenizer instead of one that is learned, for both languages where there are
    two: a folder with tokenizer.json, or the name of a fast tokenizer on the Hugging Face hub. It
    is saved with each run. Of the other keys only `special_tokens` goes with it."""
    special_tokens: dict[Role, str] = Field(default_factory=dict)
    """Tokens of `pretrained` for padding (`pad`), the begin (`bos`) and the end (`eos`) of a text,
    unknown words (`unk`) and masks (`mask`). A token that the tokenizer lacks is added to it.
    Default: what the tokenizer says, and its `cls` and `sep` in the place of a missing `bos` and
    `eos`."""
    sample_rows: int = Field(100_000, ge=1, le=1_000_000_000)
    """From how many lines, pairs or labelled texts at the head of a stream (`data.streaming`) the
    vocabulary is learned; from a training part that is stored, it is learned as a whole."""

    @model_validator(mode="after")
    def _check_ready_made(self) -> Self:
        if self.pretrained is None and self.special_tokens:
            raise ValueError(
                "special_tokens is given without pretrained, the tokenizer whose tokens they are: "
                "leave it out"
            )
        own = self.model_dump(exclude_defaults=True, exclude={"pretrained", "special_tokens"})
        if self.pretrained is not None and own:
            name, value = next(iter(own.items()))
            raise ValueError(
                f"{name} is {value} and pretrained is {self.pretrained!r}, whose vocabulary is "
                f"ready-made: leave {name} out"
            )
        if self.marks != "@@" and getattr(self, "type", None) != "presegmented":
            raise ValueError(
                f"marks is {self.marks!r}, expected only with type: presegmented, text whose words "
                f"are in pieces already; leave it out, or set the type"
            )
        return self


class TokenizerSettings(VocabularySettings):
    """Settings of the vocabularies of two languages, learned from the training pairs."""

    type: Literal["bpe", "presegmented"] = "bpe"
    """What the tokens are. bpe: subwords of byte-level byte-pair encoding; presegmented: what white
    space divides in text whose words are in pieces already."""
    joint: bool = True
    """Whether both languages have one vocabulary, whose embeddings can be shared, or each has its
    own."""
    vocab_size: int = Field(
        4000,
        le=_MOST_TOKENS,
        description="Number of subwords, special tokens included; a small corpus gives fewer. "
        f"Byte-pair encoding has at least {MIN_VOCAB_SIZE}.",
    )
    source_vocab_size: int | None = Field(None, le=_MOST_TOKENS)
    """Size of the source vocabulary if joint is false. Default: vocab_size."""
    target_vocab_size: int | None = Field(None, le=_MOST_TOKENS)
    """Size of the target vocabulary if joint is false. Default: vocab_size."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("vocab_size", "source_vocab_size", "target_vocab_size"):
            size = getattr(self, name)
            if size is not None:
                _check_size(name, size, self.type, SPECIAL_TOKENS)
            if size is not None and self.joint and name != "vocab_size":
                raise ValueError(
                    f"{name} is {size} and joint is true, expected it only for separate "
                    "vocabularies: set joint to false, or give the size of the joint vocabulary as "
                    "vocab_size"
                )
        return self


class TextTokenizerSettings(VocabularySettings):
    """Settings of the vocabulary of one language, learned from the training part of the text."""

    type: Literal["bpe", "word", "presegmented"] = "bpe"
    """What the tokens are. bpe: subwords of byte-level byte-pair encoding; word: the words between
    white space, for text that is already tokenised; presegmented: as word, in text whose words are
    in pieces already."""
    vocab_size: int = Field(4000, le=_MOST_TOKENS)
    """Number of subwords or words, special tokens included; little text gives fewer."""
    min_frequency: int = Field(2, ge=1, le=1_000_000_000)
    """Subwords and words that occur less often than this are left out."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_size("vocab_size", self.vocab_size, self.type, TEXT_SPECIAL_TOKENS)
        return self


def _check_size(name: str, size: int, kind: str, special: tuple[Any, ...]) -> None:
    least = len(special) + (256 if kind == "bpe" else 1)
    if size < least:
        units = {"bpe": "the 256 bytes", "word": "a word", "presegmented": "a piece"}[kind]
        raise ValueError(
            f"{name} is {size}, expected at least {least}: {units} and the {len(special)} special "
            f"tokens are part of every vocabulary"
        )
