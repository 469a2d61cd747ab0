"""How pages show the tokens of a vocabulary, one by one."""

from functools import cache

from transformers import PreTrainedTokenizerFast

SPACE = "▁"  # how a space is shown, as sentencepiece does


def token_names(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    r"""Returns the number of each token to the token as a person reads it.

    Tokens of byte-level BPE are decoded: a space is shown as `▁`; a byte that is no text by itself,
    and a character that cannot be printed, is escaped. Words, and pieces that are marked in some
    other way, stay as they are, and so do special tokens.

    >>> from headwise.data.tokenizers.vocabularies import train_bpe
    >>> tokenizer = train_bpe(["an été", "an été"], 300)
    >>> names = token_names(tokenizer)
    >>> [names[number] for number in tokenizer("an été\tà")["input_ids"]]
    ['▁an', '▁été', '\\t', '\\xc3', '\\xa0', '<eos>']
    """
    backend = tokenizer.backend_tokenizer
    vocabulary = tokenizer.get_vocab()
    if "ByteLevel" not in repr(backend.decoder):
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
    # Imported here: it imports models of transformers, and those have ours imported, which need it.
    from headwise.transformers_internals import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}
