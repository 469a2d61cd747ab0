"""A text to classify, or a pair of texts."""

from typing import Any

import torch
from torch import Tensor

from headwise.models.classifier import SequenceClassifierConfig
from headwise.recipe.catalogue import task_class
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
from headwise.report.explorer.inputs.tokens import text_stack
from headwise.report.explorer.payload import Candidate, Output
from headwise.tasks.classification import Classification
from headwise.tasks.text.labelled.corpus import Example
from headwise.tasks.text.labelled.dataset import Examples
from headwise.tasks.text.tokenization import TextTokenizer

_CLASSES = 10  # of the most probable that are shown


def labelled_input(trained: Trained, source: Source) -> Input:
    """Returns a text, or two that a tab divides, as an encoder reads them."""
    task = task_class(trained.recipe.task)
    assert issubclass(task, Classification)
    refuse_target(source, task.name())
    tokenizer = trained.tokenizer(TextTokenizer)
    config = trained.model.config
    item = label = None
    text = given_text(source)
    if text is None:
        part = part_of(trained.task(task), source.part)
        assert isinstance(part, Examples)
        item = chosen_item(part, source)
        ids, example = part[item.number]["input_ids"], part.examples[item.number]
        text = example.text if example.pair is None else f"{example.text}\t{example.pair}"
        label = str(example.label)
    else:
        first, _, second = text.partition("\t")
        if not first.strip():
            raise ValueError("text is empty, expected one, or two that a tab divides")
        pair = second if second.strip() else None
        example = Example(first, pair, 0.0)
        ids = _encoded(example, tokenizer)
        check_length(ids, trained.recipe.data.max_length, "the text")
    check_length(ids, config.max_positions, "the text")

    def output(out: Any) -> Output:
        return class_output(out.logits[0], config, label)

    return Input(
        arguments={"input_ids": torch.tensor([ids], device=trained.model.device)},
        stacks={"encoder": text_stack(tokenizer.tokenizer, ids)},
        output=output,
        text=text,
        item=item,
    )


def class_output(
    logits: Tensor, config: SequenceClassifierConfig, label: str | None = None
) -> Output:
    """Returns the classes of a text, or its number, from the outputs of a classifier.

    Args:
        logits: `(classes,)`.
        config: of the classifier.
        label: the true class or number, if it is known.
    """
    if config.problem == "regression":
        return Output(number=float(logits[0]), label=label)
    shares = logits.float().softmax(-1)
    classes = config.id2label or {}
    found = [
        Candidate(text=classes.get(number, str(number)), probability=float(shares[number]))
        for number in shares.argsort(descending=True)[:_CLASSES].tolist()
    ]
    return Output(classes=found, label=label)


def _encoded(example: Example, tokenizer: TextTokenizer) -> list[int]:
    """The tokens of a text or a pair, whole, as the data set encodes them."""
    # A regression has no classes, so that any number is a label.
    texts = [example.text, *([] if example.pair is None else [example.pair])]
    longest = sum(len(row) + 1 for row in tokenizer.encode(texts))
    return Examples([example], tokenizer, None, longest)[0]["input_ids"]
