"""What tokens are called on the page, and which of them a model takes for probable."""

from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from headwise.report.explorer.payload import Candidate, Prediction, Stack
from headwise.tasks.text.token_names import SPACE, token_names

_BEST = 5  # candidates of a prediction


@lru_cache(maxsize=32)  # one for each tokenizer: of a large vocabulary they take a second
def _names(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    return token_names(tokenizer)


def names_of(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[str]:
    """Returns what tokens are called: their text, with the space that they begin with.

    Args:
        tokenizer: a fast tokenizer of the transformers library.
        ids: the tokens.
    """
    names = _names(tokenizer)
    # An embedding may have more rows than there are tokens.
    return [names.get(token, str(token)).replace(SPACE, " ") for token in ids]


def text_stack(
    tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], given: int | None = None
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
        tokens=names_of(tokenizer, ids),
        special=[position for position, token in enumerate(ids) if token in special],
        given=given,
    )


def predictions(
    tokenizer: PreTrainedTokenizerFast,
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
        names = names_of(tokenizer, best.indices[row].tolist())
        found.append(
            Prediction(
                stack=stack,
                position=position,
                best=[
                    Candidate(text=name, probability=round(float(share), 5))
                    for name, share in zip(names, best.values[row], strict=True)
                ],
                probability=None if token is None else round(float(shares[row, token]), 5),
            )
        )
    return found
