r"""Tokenizers: byte-level BPE or words, learned from the training text, or ready-made.

A run has one tokenizer, or one for each language of a translation. It is saved with the model:
`AutoTokenizer.from_pretrained("RUN/model")` encodes a text as it was encoded for the training.

- Language models read `\n text`: the special token `\n` ends each line, and begins a text.
- Masked language models read `<bos> text <eos>`; `<mask>` in a text hides a token.
- Classifiers read `<bos> text <eos>`, or `<bos> text <eos> <eos> other text <eos>`, as RoBERTa.
- Translation models read and write `text <eos>`.

Byte-level BPE starts from the 256 bytes, which can represent any text: no text is unknown, and
decoding restores the text. Vocabularies of words are for texts that are already tokenised, such as
WikiText: white space separates words, and a word that the vocabulary lacks is `<unk>`. The name of
a special token inside a text is ordinary text for BPE, and an unknown word for words.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import tokenizers
from pydantic import Field, model_validator
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from headwise.data.encode import cached_folder
from headwise.data.load import DataError
from headwise.models.tokenizers import LineTokenizer, MaskTokenizer
from headwise.settings import FrozenSettings

Kind = Literal["lines", "masked", "classifier", "translation"]
Role = Literal["pad", "bos", "eos", "unk", "mask"]
PAD, BOS, EOS, UNK, MASK, LINE_END = "<pad>", "<bos>", "<eos>", "<unk>", "<mask>", "\n"
SPACE = "▁"  # shows a space on pages, as in sentencepiece
SPECIAL_ID_NAMES = ("pad_token_id", "bos_token_id", "eos_token_id")  # for a config

_TOKENS: dict[Role, str] = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "mask": MASK}
# The roles that a model needs, and the templates of a text and of a pair of texts.
_ROLES: dict[Kind, tuple[Role, ...]] = {
    "lines": ("pad",),
    "masked": ("pad", "bos", "eos", "mask"),
    "classifier": ("pad", "bos", "eos"),
    "translation": ("pad", "bos", "eos"),
}
_TEMPLATES: dict[Kind, tuple[str, str]] = {
    "lines": ("{end} $A", "{end} $A {end} $B"),  # a model goes on with the last line
    "masked": ("{bos} $A {eos}", "{bos} $A {eos} $B {eos}"),
    "classifier": ("{bos} $A {eos}", "{bos} $A {eos} {eos} $B {eos}"),
    "translation": ("$A {eos}", "$A {eos} $B {eos}"),
}
_TOKENIZER_CLASSES: Mapping[str, Any] = {"lines": LineTokenizer, "masked": MaskTokenizer}
# The time to learn byte-pair encoding grows with the square of a word's length. So longer words (in
# bytes) are learned in pieces; they are encoded as a whole.
_MAX_WORD_BYTES = 256


class TokenizerSettings(FrozenSettings):
    """The vocabulary: learned from the training text, or ready-made."""

    type: Literal["bpe", "word"] = "bpe"
    """Kind of tokens. bpe: subwords of byte-level byte-pair encoding; word: the words between white
    space, for text that is already tokenised."""
    vocab_size: int = Field(4000, ge=1)
    """Number of subwords or words, special tokens included; little text gives fewer."""
    min_frequency: int = Field(2, ge=1)
    """Subwords and words that occur less often than this are left out."""
    pretrained: str | None = None
    """A ready-made tokenizer in place of one that is learned: a folder with tokenizer.json, or the
    name of a fast tokenizer on the Hugging Face hub. Special tokens that it lacks are added."""
    sample_rows: int = Field(100_000, ge=1)
    """Number of rows at the head of a stream (`data.streaming`) from which the vocabulary is
    learned. Without streaming it is learned from the whole training split."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.model_dump(exclude_defaults=True, exclude={"pretrained"})
        if self.pretrained is not None and given:
            raise ValueError(
                f"{' and '.join(given)} and pretrained are given, expected one of them: the "
                f"vocabulary of {self.pretrained!r} is ready-made"
            )
        if self.type == "bpe" and self.pretrained is None and self.vocab_size < 256 + len(_TOKENS):
            raise ValueError(
                f"vocab_size is {self.vocab_size}, expected at least {256 + len(_TOKENS)}: the 256 "
                f"bytes and the special tokens are part of every vocabulary of subwords"
            )
        return self


def open_tokenizer(
    settings: TokenizerSettings,
    kind: Kind,
    folder: Path | None,
    texts: Callable[[], Iterable[str]],
    cache_key: Sequence[object],
) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a task: from a model's folder, ready-made, cached, or learned.

    Args:
        settings: the vocabulary, unless the folder has one.
        kind: the kind of the model, which decides the special tokens around a text.
        folder: the folder of a model that may have a tokenizer.
        texts: returns the texts to learn from; it is called only if nothing is cached.
        cache_key: identifies these texts.
    """
    if folder is not None and (folder / "tokenizer.json").is_file():
        return adapt_tokenizer(str(folder), kind)
    if settings.pretrained is not None:
        return adapt_tokenizer(settings.pretrained, kind)

    def write(folder: Path) -> None:
        learn_tokenizer(texts(), settings, kind).save_pretrained(folder)

    key = [kind, settings.model_dump(), tokenizers.__version__, *cache_key]
    return read_tokenizer(cached_folder("tokenizers", key, write), kind)


def learn_tokenizer(
    texts: Iterable[str], settings: TokenizerSettings, kind: Kind
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer that is learned from texts; equal texts give equal tokenizers.

    >>> settings = TokenizerSettings(vocab_size=300)
    >>> tokenizer = learn_tokenizer(["open it", "open the file"], settings, "classifier")
    >>> tokenizer.convert_ids_to_tokens(tokenizer("open")["input_ids"])
    ['<bos>', 'Ġopen', '<eos>']
    """
    learn = _learn_words if settings.type == "word" else _learn_subwords
    roles: dict[Role, str] = {role: _TOKENS[role] for role in _ROLES[kind]}
    special_tokens = [*roles.values(), *([LINE_END] if kind == "lines" else [])]
    if settings.type == "word":
        roles["unk"] = UNK
        special_tokens.append(UNK)
    options: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "min_frequency": settings.min_frequency,
        "special_tokens": special_tokens,
        "show_progress": False,
    }
    return _with_template(learn(texts, kind, options), kind, roles)


def _learn_words(texts: Iterable[str], kind: Kind, options: dict[str, Any]) -> Tokenizer:
    """Returns a vocabulary of the words between white space."""
    backend = Tokenizer(models.WordLevel(unk_token=UNK))
    # The name of a special token in a text is an unknown word.
    names = [token for token in options["special_tokens"] if token not in (UNK, LINE_END)]
    backend.normalizer = normalizers.Sequence([normalizers.Replace(name, UNK) for name in names])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(texts, WordLevelTrainer(**options))
    if kind == "lines":
        # A decoded text begins with a space, but not behind a line end.
        first = decoders.Replace(Regex(r"\A"), " ")
        ends = decoders.Replace(Regex(" ?\n ?"), "\n")
        backend.decoder = decoders.Sequence([first, decoders.Fuse(), ends])
    return backend


def _learn_subwords(texts: Iterable[str], kind: Kind, options: dict[str, Any]) -> Tokenizer:
    """Returns a vocabulary of subwords by byte-level byte-pair encoding."""
    backend = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = pre_tokenizers.Split(Regex(f".{{1,{_MAX_WORD_BYTES}}}"), "isolated")
    # With a space before it, the first word has the same subwords as inside a text.
    first: list[Any] = []
    if kind == "masked":  # no space is inserted behind a mask
        first = [pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False)]
    else:
        backend.normalizer = normalizers.Prepend(" ")
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, words, pieces])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(texts, BpeTrainer(initial_alphabet=alphabet, **options))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, words])
    # The decoder removes this space; for a language model only behind a line end, since tools
    # decode generated text without its prompt.
    last: list[Any] = [decoders.Strip(" ", 1, 0)]
    if kind == "lines":
        last = [decoders.Fuse(), decoders.Replace("\n ", "\n")]
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), *last])
    return backend


def adapt_tokenizer(name: str, kind: Kind) -> PreTrainedTokenizerFast:
    """Returns a ready-made tokenizer with the special tokens and the template of a task.

    A special token is added where the tokenizer lacks one, or has the same token for two roles:
    otherwise `<pad>` might be `<eos>`, and a translation would end where it begins.

    Args:
        name: a folder with tokenizer.json, or a name on the Hugging Face hub.
        kind: the kind of the model, which decides the special tokens around a text.
    """
    path = Path(name).expanduser()
    if (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    else:
        tokenizer = read_tokenizer(path if path.is_dir() else name)
    tokens: dict[Role, str | None] = {
        "eos": tokenizer.eos_token or getattr(tokenizer, "sep_token", None),
        "bos": tokenizer.bos_token or getattr(tokenizer, "cls_token", None),
        "unk": tokenizer.unk_token,
        "mask": getattr(tokenizer, "mask_token", None),
        "pad": tokenizer.pad_token,
    }
    roles: dict[Role, str] = {}
    for role, token in tokens.items():
        if token is not None and token not in roles.values():
            roles[role] = token
        elif role in _ROLES[kind]:
            roles[role] = _TOKENS[role]
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    # New tokens get the last ids; the other tokens keep theirs.
    backend.add_special_tokens([AddedToken(token, special=True) for token in roles.values()])
    return _with_template(backend, kind, roles)


def read_tokenizer(source: Path | str, kind: Kind = "classifier") -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a model's folder or of the hub, without running code of its own.

    Raises:
        DataError: there is no fast tokenizer, or it is damaged.
    """
    try:
        # Without trust_remote_code=False, transformers might ask on the terminal.
        tokenizer_class = _TOKENIZER_CLASSES.get(kind, AutoTokenizer)
        tokenizer = tokenizer_class.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # the hub's client and the Rust library raise anything
        raise DataError(
            f"the tokenizer in {source} cannot be read ({error}): name a folder with "
            f"tokenizer.json, or a tokenizer on the Hugging Face hub; copy or train a run again"
        ) from error
    if not tokenizer.is_fast:
        raise DataError(
            f"{source} has a {type(tokenizer).__name__}, expected a fast tokenizer, with a file "
            f"tokenizer.json; convert it, or choose another"
        )
    return tokenizer


def encoder_of(tokenizer: PreTrainedTokenizerFast) -> Callable[[Sequence[str]], list[list[int]]]:
    """Returns a function that encodes texts without special tokens.

    The name of a special token inside a text, such as `<mask>`, is encoded as ordinary text.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["special"] or token["content"] == tokenizer.mask_token
    backend = Tokenizer.from_str(json.dumps(state))
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    return encode


def vocab_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Returns the largest id plus one."""
    return max(tokenizer.get_vocab().values()) + 1


def largest_size(settings: TokenizerSettings, kind: Kind) -> int:
    """Returns the largest size that a vocabulary can have once it is learned."""
    if settings.pretrained is None:
        return settings.vocab_size
    return vocab_size(adapt_tokenizer(settings.pretrained, kind))


def has_words(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the tokens are words, from which a text cannot be restored exactly."""
    return isinstance(tokenizer.backend_tokenizer.model, models.WordLevel)


def _with_template(
    backend: Tokenizer, kind: Kind, roles: Mapping[Any, str]
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of transformers that adds the special tokens of a kind to a text."""
    if kind == "lines":
        backend.add_tokens([AddedToken(LINE_END, normalized=False)])
    elif kind == "masked":  # a mask includes the space before it
        backend.add_special_tokens([AddedToken(roles["mask"], lstrip=True, normalized=False)])
    names = {"end": LINE_END, **roles}
    templates = (template.split(" ") for template in _TEMPLATES[kind])
    single, pair = ([piece.format(**names) for piece in template] for template in templates)
    special = sorted({piece for piece in pair if piece not in ("$A", "$B")})
    ids = [(token, backend.token_to_id(token)) for token in special]
    backend.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    arguments: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    if kind == "lines":
        arguments |= {"bos_token": LINE_END, "eos_token": LINE_END, "padding_side": "left"}
    return _TOKENIZER_CLASSES.get(kind, PreTrainedTokenizerFast)(
        tokenizer_object=backend,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,  # decoding must restore the text
        split_special_tokens=True,
        **arguments,
    )


def token_names(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    r"""Returns a readable name of each token, by its id.

    Tokens of byte-level BPE are decoded: `▁` stands for a space; a byte that is no character by
    itself, and a character that cannot be printed, is escaped. Other tokens are their own names.

    >>> tokenizer = learn_tokenizer(["an été", "an été"], TokenizerSettings(), "translation")
    >>> names = token_names(tokenizer)
    >>> [names[number] for number in tokenizer("an été\tà")["input_ids"]]
    ['▁an', '▁été', '\\t', '\\xc3', '\\xa0', '<eos>']
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)  # slow tokenizers have none
    is_byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
    to_byte = {character: byte for byte, character in bytes_to_unicode().items()}
    added = tokenizer.added_tokens_decoder

    def name(token: str, number: int) -> str:
        if is_byte_level and number not in added and to_byte.keys() >= set(token):
            text = bytes(map(to_byte.__getitem__, token)).decode("utf-8", "backslashreplace")
            token = text.replace(" ", SPACE)
        escaped = (x if x.isprintable() else x.encode("unicode_escape").decode() for x in token)
        return "".join(escaped)

    return {number: name(token, number) for token, number in tokenizer.get_vocab().items()}
