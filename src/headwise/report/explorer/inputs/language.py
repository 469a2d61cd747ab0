"""A text to continue: the decoder reads it, and what it has written itself."""

from typing import Any

import torch

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
from headwise.tasks.language_modelling import LanguageModelling
from headwise.tasks.text.running.generating import GenerationSettings, continue_ids, prompt_ids
from headwise.tasks.text.tokenization import TextTokenizer

_TOKENS = 24  # of a continuation


def language_input(trained: Trained, source: Source) -> Input:
    """Returns a text with its continuation, or a block of the data."""
    refuse_target(source, LanguageModelling.name())
    tokenizer = trained.tokenizer(TextTokenizer)
    longest = trained.model.config.max_positions
    text, item, given = given_text(source), None, None
    if text is None:
        part = part_of(trained.task(LanguageModelling), source.part)
        item = chosen_item(part, source)
        ids = part[item.number].tolist()
    else:
        ids = prompt_ids(tokenizer, text)
    check_length(ids, longest, "the text")
    shown = []
    if text is not None:
        given = len(ids)
        room = _TOKENS if longest is None else min(_TOKENS, longest - given)
        settings = trained.recipe.evaluation.generation
        settings = GenerationSettings(
            max_new_tokens=min(settings.max_new_tokens, max(1, room)),
            lines=settings.lines,
            temperature=0,  # what changes by an ablation is then no matter of chance
        )
        ids += continue_ids(trained.model, ids, tokenizer.eos_token_id, settings, seed=0)[:room]
        before, after = tokenizer.decode([ids[1:given], ids[1:]])
        continuation = after[len(before) :].strip()
        shown.append(Made(label="continuation", by_model=True, text=continuation))

    def output(out: Any) -> Output:
        rows = list(range(1, len(ids) + 1))
        true = [*ids[1:], None]
        return Output(
            made=shown,
            predictions=predictions(tokenizer.tokenizer, "decoder", out.logits[0], rows, true),
        )

    return Input(
        arguments={"input_ids": torch.tensor([ids], device=trained.model.device)},
        stacks={"decoder": text_stack(tokenizer.tokenizer, ids, given)},
        output=output,
        text=text,
        item=item,
    )
