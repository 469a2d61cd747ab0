"""A text for any model with any tokenizer of the transformers library, without a run."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from headwise.models.causal_lm import CausalLM
from headwise.models.classifier import SequenceClassifier
from headwise.models.masked_lm import MaskedLM
from headwise.models.seq2seq import Seq2SeqLM
from headwise.report.explorer.inputs.labelled import class_output
from headwise.report.explorer.inputs.masked import filled_output, with_holes
from headwise.report.explorer.inputs.source import Input, check_length
from headwise.report.explorer.inputs.tokens import predictions, text_stack
from headwise.report.explorer.payload import Made, Output
from headwise.tasks.text.running.generating import prompt_ids
from headwise.tasks.text.tokenization import TextTokenizer

_TOKENS = 24  # of a continuation


def any_input(model: nn.Module, tokenizer: Any, text: str, target: str | None) -> Input:
    """Returns a text as a model reads it.

    Args:
        model: a headwise model, or any module whose forward takes token ids `(batch, time)` as
            `input_ids`, or as its first argument.
        tokenizer: a fast tokenizer of the transformers library, or one of headwise's.
        text: the text. In that of a masked language model the tokenizer's mask stands for the
            tokens to fill in.
        target: what the decoder of a `Seq2SeqLM` is to read.

    Raises:
        ValueError: the text is empty or too long, a target is given to another model, or an
            argument is something else.
    """
    if not isinstance(text, str):
        raise ValueError(f"text is {text!r}, expected a single text for the model to read")
    if not text.strip():
        raise ValueError("text is empty, expected a text for the model to read")
    if target is not None and not isinstance(model, Seq2SeqLM):
        raise ValueError(f"target is given, but a {type(model).__name__} reads none; leave it out")
    # headwise's tokenizers hold those of one or two languages.
    source = getattr(tokenizer, "source", getattr(tokenizer, "tokenizer", tokenizer))
    if not isinstance(source, PreTrainedTokenizerFast):
        raise ValueError(
            f"tokenizer is a {type(source).__name__}, expected a fast tokenizer of transformers "
            f"(PreTrainedTokenizerFast), or the tokenizer of a run"
        )
    ids, true = _tokens(model, tokenizer, source, text)
    longest = getattr(getattr(model, "config", None), "max_positions", None)
    check_length(ids, longest, "the text")
    if isinstance(model, Seq2SeqLM):
        return _pair(model, source, getattr(tokenizer, "target", source), ids, target)
    if isinstance(model, CausalLM):
        return _continued(model, source, ids, longest)
    stack = "encoder" if isinstance(model, (MaskedLM, SequenceClassifier)) else "input"

    def output(out: Any) -> Output:
        if isinstance(model, SequenceClassifier):
            return class_output(out.logits[0], model.config)
        if isinstance(model, MaskedLM):
            hidden = [i for i, token in enumerate(ids) if token == source.mask_token_id]
            return filled_output(source, ids, out.logits[0, hidden], hidden, true)
        return Output()

    return Input(
        arguments={_argument(model): _batch(model, ids)},
        stacks={stack: text_stack(source, ids)},
        output=output,
        text=text,
    )


def _tokens(
    model: nn.Module, tokenizer: Any, source: PreTrainedTokenizerFast, text: str
) -> tuple[list[int], list[int | None] | None]:
    """The tokens of a text as a model has learned to read it, and those that are hidden."""
    if not isinstance(tokenizer, TextTokenizer):
        return _encoded(source, text), None
    if isinstance(model, CausalLM):
        return prompt_ids(tokenizer, text), None
    if isinstance(model, MaskedLM):
        ids, _, true = with_holes(text, tokenizer)
        return ids, true
    return [tokenizer.bos_token_id, *_encoded(source, text)], None


def _pair(
    model: Seq2SeqLM,
    source: PreTrainedTokenizerFast,
    tokenizer: PreTrainedTokenizerFast,
    ids: list[int],
    target: str | None,
) -> Input:
    """A text and its translation, or the target."""
    config = model.config
    if target is None:
        most = min(2 * len(ids) + 20, config.max_positions or 2 * len(ids) + 20)
        made = _generated(model, ids, max_length=most + 1)
        written = made[1:]  # behind the start
    else:
        written = _encoded(tokenizer, target)
    read = [config.decoder_start_token_id, *written]
    if written[-1:] == [config.eos_token_id]:
        read = read[:-1]  # what ends it is predicted only
    if target is not None:
        check_length(read, config.max_positions, "the target")
    read = read[: config.max_positions]
    text = tokenizer.decode(written, skip_special_tokens=True)
    true: list[int | None] = [*written, None][: len(read)]

    def output(out: Any) -> Output:
        label = "target" if target is not None else "translation"
        found = predictions(tokenizer, "decoder", out.logits[0], range(1, len(read) + 1), true)
        made = [Made(label=label, by_model=target is None, text=text)]
        return Output(made=made, predictions=found)

    return Input(
        arguments={
            "input_ids": _batch(model, ids),
            "decoder_input_ids": _batch(model, read),
        },
        stacks={
            "encoder": text_stack(source, ids),
            "decoder": text_stack(tokenizer, read, given=1 if target is None else None),
        },
        output=output,
    )


def _continued(
    model: CausalLM, tokenizer: PreTrainedTokenizerFast, ids: list[int], longest: int | None
) -> Input:
    """A text and its continuation."""
    if ids[-1] == tokenizer.eos_token_id and len(ids) > 1:
        ids = ids[:-1]  # the text goes on
    given = len(ids)
    room = min(_TOKENS, (longest or given + _TOKENS) - given)
    written = _generated(model, ids, max_length=given + room) if room else ids
    continuation = tokenizer.decode(written[given:], skip_special_tokens=True)

    def output(out: Any) -> Output:
        true = [*written[1:], None]
        rows = range(1, len(written) + 1)
        return Output(
            made=[Made(label="continuation", by_model=True, text=continuation)],
            predictions=predictions(tokenizer, "decoder", out.logits[0], rows, true),
        )

    return Input(
        arguments={"input_ids": _batch(model, written)},
        stacks={"decoder": text_stack(tokenizer, written, given)},
        output=output,
    )


def _generated(model: Any, ids: list[int], **limits: int) -> list[int]:
    """What a model writes by always taking the most probable token."""
    batch = _batch(model, ids)
    with torch.no_grad():
        made = model.eval().generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=False, num_beams=1, **limits
        )
    return cast(Tensor, made)[0].tolist()


def _encoded(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids = tokenizer(text)["input_ids"]
    if not ids:
        raise ValueError(f"text is {text!r}, of which the tokenizer makes nothing")
    return cast(list[int], ids)


def _batch(model: nn.Module, ids: list[int]) -> Tensor:
    return torch.tensor([ids], device=next(model.parameters()).device)


def _argument(model: nn.Module) -> str:
    """The name by which a module takes token ids."""
    taken: Callable[..., Any] = model.forward
    names = list(inspect.signature(taken).parameters)
    return "input_ids" if "input_ids" in names or not names else names[0]
