"""A text with holes: the encoder reads it, and fills them in."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from headwise.ops.labels import IGNORED_LABEL
from headwise.report.explorer.inputs.source import (
    Input,
    Source,
    Trained,
    check_length,
    chosen_item,
    given_text,
    part_of,
    refuse_target,
)
from headwise.report.explorer.inputs.tokens import predictions, text_stack
from headwise.report.explorer.payload import Made, Output
from headwise.tasks.masked_language_modelling import MaskedLanguageModelling
from headwise.tasks.outcome import spread
from headwise.tasks.text.running.dataset import MaskedBlocks
from headwise.tasks.text.tokenization import TextTokenizer


def masked_input(trained: Trained, source: Source) -> Input:
    """Returns a text in which tokens are hidden, by the user or else some of it."""
    refuse_target(source, MaskedLanguageModelling.name())
    tokenizer = trained.tokenizer(TextTokenizer)
    text, item = given_text(source), None
    true: list[int | None]
    if text is None:
        part = part_of(trained.task(MaskedLanguageModelling), source.part)
        assert isinstance(part, MaskedBlocks)
        item = chosen_item(part, source)
        drawn = part.draw(item.number, 0)
        ids = drawn["input_ids"]
        hidden = [i for i, label in enumerate(drawn["labels"]) if label != IGNORED_LABEL]
        true = [drawn["labels"][i] for i in hidden]
    else:
        ids, hidden, true = with_holes(text, tokenizer)
    check_length(ids, trained.model.config.max_positions, "the text")

    def output(out: Any) -> Output:
        return filled_output(tokenizer.tokenizer, ids, out.logits[0, hidden], hidden, true)

    return Input(
        arguments={"input_ids": torch.tensor([ids], device=trained.model.device)},
        stacks={"encoder": text_stack(tokenizer.tokenizer, ids)},
        output=output,
        text=text,
        item=item,
    )


def filled_output(
    tokenizer: PreTrainedTokenizerFast,
    ids: list[int],
    logits: Tensor,
    hidden: list[int],
    true: list[int | None] | None = None,
) -> Output:
    """Returns what a model puts into the holes of a text.

    Args:
        tokenizer: of the text.
        ids: its tokens.
        logits: of the holes, `(holes, tokens)`.
        hidden: the positions of the holes.
        true: what stood there; None where that is not known.
    """
    filled = list(ids)
    for position, token in zip(hidden, logits.argmax(-1).tolist(), strict=True):
        filled[position] = token
    shown = tokenizer.decode(filled, skip_special_tokens=True)
    return Output(
        made=[Made(label="fill-in", by_model=True, text=shown)],
        predictions=predictions(tokenizer, "encoder", logits, hidden, true or [None] * len(hidden)),
    )


def with_holes(
    text: str, tokenizer: TextTokenizer
) -> tuple[list[int], list[int], list[int | None]]:
    """Returns the tokens of a text, the positions that are hidden, and what stood there.

    A `<mask>` in the text is a hole; what stood there is None. If there is none, about one token in
    seven is hidden.
    """
    assert tokenizer.mask_token_id is not None
    mask = tokenizer.tokenizer.mask_token
    ids = [tokenizer.bos_token_id]
    for number, piece in enumerate(text.split(mask)):
        ids += [tokenizer.mask_token_id] * (number > 0)
        ids += tokenizer.encode([piece.strip()], eos=False)[0] if piece.strip() else []
    ids.append(tokenizer.eos_token_id)
    hidden = [i for i, token in enumerate(ids) if token == tokenizer.mask_token_id]
    if hidden:
        return ids, hidden, [None] * len(hidden)
    words = range(1, len(ids) - 1)
    hidden = list(spread(words[len(words) // 14 :], -(-len(words) // 7)))
    true: list[int | None] = [ids[i] for i in hidden]
    for i in hidden:
        ids[i] = tokenizer.mask_token_id
    return ids, hidden, true
