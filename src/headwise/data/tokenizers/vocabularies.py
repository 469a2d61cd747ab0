"""Where tokenizers come from, learned from a text or ready-made; what pages call their tokens."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from headwise.data.tokenizers.settings import (
    BOS,
    EOS,
    MASK,
    PAD,
    SPECIAL_TOKENS,
    TEXT_SPECIAL_TOKENS,
    UNK,
    Marks,
    Role,
)

SPACE = "▁"  # how pages show a space, as sentencepiece does

# A piece that ends in @@ goes on in the next one; behind any other the word ends.
_JOIN: dict[Marks, decoders.Decoder] = {
    "@@": decoders.Sequence(
        [
            decoders.Replace(Regex("(?<!@@)$"), " "),
            decoders.Replace(Regex("@@$"), ""),
            decoders.Fuse(),
            decoders.Strip(" ", 0, 1),
        ]
    ),
    "▁": decoders.Metaspace(replacement="▁", prepend_scheme="always"),
}


# The time of learning from a word grows with the square of its length. So in learning, byte-pair
# encoding sees words of more bytes than this in pieces; in encoding it takes them whole.
LONGEST_WORD = 256
_PIECES = pre_tokenizers.Split(Regex(f".{{1,{LONGEST_WORD}}}"), "isolated")


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    min_frequency: int = 2,  # a subword seen once is the word itself: nothing to learn from it
) -> PreTrainedTokenizerFast:
    """Learns byte-level byte-pair encoding from texts."""
    tokenizer = Tokenizer(models.BPE())
    # A space before the text makes its first word the same subword as elsewhere; the decoder
    # removes exactly this space.
    tokenizer.normalizer = normalizers.Prepend(" ")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, _PIECES])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = words
    return _finish(tokenizer, special_tokens)


def train_words(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = TEXT_SPECIAL_TOKENS,
    min_frequency: int = 1,
    marks: Marks | None = None,
) -> PreTrainedTokenizerFast:
    """Numbers what white space divides in texts, by frequency.

    What occurs less often than `min_frequency` is `<unk>`. `marks` says how the pieces of words are
    marked, which decoding joins; None is for whole words.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    # The text's own <unk> is ours; other special tokens must not appear inside a line.
    others = [token for token in special_tokens if token != UNK]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(token, UNK) for token in others]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if marks is not None:
        tokenizer.decoder = _JOIN[marks]
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer, special_tokens)


def ready_made(
    name: str, special_tokens: Mapping[Role, str], needed: Sequence[Role]
) -> PreTrainedTokenizerFast:
    """Loads a ready-made tokenizer and makes it put its end token behind every text.

    Args:
        name: a folder with tokenizer.json, or a name on the Hugging Face hub.
        special_tokens: tokens in the place of those that the tokenizer names; those that it lacks
            are added.
        needed: the roles for which there must be a token.
    """
    found = _find(name)
    roles: dict[Role, str | None] = {
        "pad": found.pad_token,
        "bos": found.bos_token or getattr(found, "cls_token", None),
        "eos": found.eos_token or getattr(found, "sep_token", None),
        "unk": found.unk_token or _unknown_of_model(found.backend_tokenizer),
        "mask": getattr(found, "mask_token", None),
        **special_tokens,
    }
    for role in needed:
        if not roles[role]:
            raise ValueError(
                f"tokenizer.pretrained is {name}, which has no token for {role}: name one, as in "
                f"tokenizer.special_tokens={{{role}: <{role}>}}; a token that the tokenizer lacks "
                f"is added to it"
            )
    for role in ("bos", "eos", "unk", "mask"):
        if roles[role] == roles["pad"]:
            raise ValueError(
                f"tokenizer.pretrained is {name}, whose tokens for {role} and pad are both "
                f"{roles['pad']!r}, expected different ones: models do not learn the embedding of "
                f"padding; set tokenizer.special_tokens={{pad: <pad>}}"
            )
    backend = Tokenizer.from_str(found.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    # Only those that are not there get ids, behind all others.
    backend.add_special_tokens([AddedToken(each, special=True) for each in roles.values() if each])
    eos = str(roles["eos"])
    eos_id = backend.token_to_id(eos)
    assert eos_id is not None
    backend.post_processor = _with_end(eos, eos_id)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **{f"{role}_token": token for role, token in roles.items()},
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=found.clean_up_tokenization_spaces,
        split_special_tokens=True,
    )


def joined(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """Returns a text whose words are in pieces with whole words; any other text as it is."""
    if not has_pieces(tokenizer):
        return text
    decoder = tokenizer.backend_tokenizer.decoder
    return str(decoder.decode(text.split()))


def has_pieces(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether a tokenizer is for text whose words are in pieces already."""
    backend = tokenizer.backend_tokenizer
    return isinstance(backend.model, models.WordLevel) and backend.decoder is not None


def read_tokenizer(source: Path | str) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a folder, or of a name on the Hugging Face hub.

    Code that comes with it does not run. Without a word on that, transformers asks on the terminal,
    where a text to translate may be the answer.
    """
    found: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    return found


def _find(name: str) -> PreTrainedTokenizerFast:
    path = Path(name).expanduser()
    try:
        if (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
            return PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
        found = read_tokenizer(path if path.is_dir() else name)
    except Exception as error:  # transformers, its hub client and the Rust library raise anything
        raise ValueError(
            f"tokenizer.pretrained is {name}, expected a folder with tokenizer.json, or the name "
            f"of a tokenizer on the Hugging Face hub, which has to be reachable or to have been "
            f"used before: {error}"
        ) from error
    if not found.is_fast:
        raise ValueError(
            f"tokenizer.pretrained is {name}, a {type(found).__name__}, expected a fast tokenizer, "
            f"with a file tokenizer.json; convert it, or choose another"
        )
    return found


def _unknown_of_model(backend: Tokenizer) -> str | None:
    """Returns the token of unknown text where only the model of a tokenizer names it, if it has it.

    The vocabulary of a model may lack the token that it names.
    """
    model = json.loads(backend.to_str())["model"]
    number = model.get("unk_id")  # as Unigram names it
    if number is None and model.get("unk_token"):
        number = backend.token_to_id(model["unk_token"])
    return None if number is None else backend.id_to_token(number)


def _finish(tokenizer: Tokenizer, special_tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns the tokenizer as one of the transformers library, which ends texts with `<eos>`."""
    tokenizer.post_processor = _with_end(EOS, SPECIAL_TOKENS.index(EOS))
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


def _with_end(eos: str, eos_id: int) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=["$A", eos], special_tokens=[(eos, eos_id)])


# --- the names of tokens ----------------------------------------------------------------------


def token_names(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    r"""Returns the number of each token to the token as a person reads it.

    Tokens of byte-level BPE are decoded: a space is shown as `▁`; a byte that is no text by itself,
    and a character that cannot be printed, is escaped. Words, and pieces that are marked in some
    other way, stay as they are, and so do special tokens.

    >>> tokenizer = train_bpe(["an été", "an été"], 300)
    >>> names = token_names(tokenizer)
    >>> [names[number] for number in tokenizer("an été\tà")["input_ids"]]
    ['▁an', '▁été', '\\t', '\\xc3', '\\xa0', '<eos>']
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)  # slow tokenizers have none
    vocabulary = tokenizer.get_vocab()
    if "ByteLevel" not in repr(getattr(backend, "decoder", None)):
        return {number: token for token, number in vocabulary.items()}
    added = tokenizer.added_tokens_decoder
    return {
        number: token if number in added else _decoded(token)
        for token, number in vocabulary.items()
    }


def _decoded(token: str) -> str:
    table = _bytes()
    if any(character not in table for character in token):
        return token  # no token of the alphabet of bytes
    text = bytes(table[character] for character in token).decode("utf-8", "backslashreplace")
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == " ":
        return SPACE
    return character if character.isprintable() else character.encode("unicode_escape").decode()


@cache
def _bytes() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes."""
    return {character: byte for byte, character in bytes_to_unicode().items()}
