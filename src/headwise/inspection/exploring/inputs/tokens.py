"""What tokens are called on the page, and which of them a model takes for probable."""

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from headwise.inspection.exploring.payload import Candidate, Prediction, Stack

_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
_BEST = 5  # candidates of a prediction


def token_names(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    r"""Returns what tokens are called: their text, with the space that they begin with.

    A token that holds a part of a character is called by its bytes: `\xc3`.

    Args:
        tokenizer: any tokenizer of the transformers library.
        ids: the tokens.
    """
    special = set(tokenizer.all_special_ids)
    by_bytes = _has_bytes(tokenizer)
    names = []
    for number, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        token = f"{number}" if token is None else token  # a row of the embedding without a token
        if number not in special and by_bytes and all(letter in _BYTES for letter in token):
            token = bytes(_BYTES[letter] for letter in token).decode("utf-8", "backslashreplace")
        names.append(token.replace("▁", " "))
    return names


def text_stack(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], given: int | None = None
) -> Stack:
    """Returns a stack of tokens.

    Args:
        tokenizer: their tokenizer.
        ids: the tokens.
        given: where those begin that the model has written.
    """
    special = set(tokenizer.all_special_ids)
    return Stack(
        kind="text",
        tokens=token_names(tokenizer, ids),
        special=[position for position, token in enumerate(ids) if token in special],
        given=given,
    )


def predictions(
    tokenizer: PreTrainedTokenizerBase,
    stack: str,
    logits: Tensor,
    positions: Sequence[int],
    true: Sequence[int | None],
) -> list[Prediction]:
    """Returns what a model takes for probable at some positions.

    Args:
        tokenizer: of the tokens that are predicted.
        stack: whose positions they are.
        logits: `(positions, tokens)`.
        positions: the positions that are predicted.
        true: the token of each; None where there is none.
    """
    shares = logits.float().softmax(-1).cpu()  # (positions, tokens)
    best = shares.topk(min(_BEST, shares.size(-1)))
    found = []
    for row, (position, token) in enumerate(zip(positions, true, strict=True)):
        names = token_names(tokenizer, best.indices[row].tolist())
        found.append(
            Prediction(
                stack=stack,
                position=position,
                best=[
                    Candidate(text=name, probability=float(share))
                    for name, share in zip(names, best.values[row], strict=True)
                ],
                probability=None if token is None else float(shares[row, token]),
            )
        )
    return found


def _has_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether its tokens are bytes, each written as a letter."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in str(backend.decoder)
