"""A sentence to translate: the encoder reads it, the decoder its translation."""

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
)
from headwise.report.explorer.inputs.tokens import predictions, text_stack
from headwise.report.explorer.payload import Made, Output
from headwise.tasks.text.parallel.dataset import TranslationDataset
from headwise.tasks.text.parallel.translating import translate_ids
from headwise.tasks.text.tokenization import TranslationTokenizer
from headwise.tasks.translation import Translation


def translation_input(trained: Trained, source: Source) -> Input:
    """Returns a sentence with its translation, which the decoder reads token by token."""
    tokenizer = trained.tokenizer(TranslationTokenizer)
    text, item, reference = given_text(source), None, None
    if text is None:
        part = part_of(trained.task(Translation), source.part)
        assert isinstance(part, TranslationDataset)
        item = chosen_item(part, source)
        text, reference = part.pairs[item.number]
    text = " ".join(text.split("\n"))
    longest = trained.model.config.max_positions
    (encoded,) = tokenizer.encode_source([text])
    check_length(encoded, longest, "the text")
    made = _translation(trained, tokenizer, encoded)
    written = made if source.target is None else tokenizer.encode_target([source.target])[0]
    ended = written[-1:] == [tokenizer.eos_token_id]
    read = [tokenizer.bos_token_id, *written[: len(written) - ended]]  # its end is predicted only
    if source.target is not None:
        check_length(read, longest, "the target")
    read = read[:longest]  # where positions end, the model's translation ends without <eos>

    def output(out: Any) -> Output:
        (text,) = tokenizer.decode_target([made])
        shown = [Made(label="translation", by_model=True, text=text)]
        if source.target is not None:
            shown.append(Made(label="target", by_model=False, text=source.target))
        if reference is not None:
            shown.append(Made(label="reference", by_model=False, text=reference))
        rows = range(1, len(read) + 1)
        true = [*written, None][: len(read)]
        return Output(
            made=shown,
            predictions=predictions(tokenizer.target, "decoder", out.logits[0], rows, true),
        )

    device = trained.model.device
    return Input(
        arguments={
            "input_ids": torch.tensor([encoded], device=device),
            "decoder_input_ids": torch.tensor([read], device=device),
        },
        stacks={
            "encoder": text_stack(tokenizer.source, encoded),
            "decoder": text_stack(
                tokenizer.target, read, given=1 if source.target is None else None
            ),
        },
        output=output,
        text=text,
        item=item,
    )


def _translation(
    trained: Trained, tokenizer: TranslationTokenizer, encoded: list[int]
) -> list[int]:
    """The tokens of a model's translation, up to its end."""
    evaluation = trained.recipe.evaluation
    (made,) = translate_ids(trained.model, tokenizer, [encoded], evaluation)
    end = tokenizer.eos_token_id
    return made[: made.index(end) + 1] if end in made else made
