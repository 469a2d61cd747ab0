"""Texts as models read them: of the data, of a run's user, or for any model and tokenizer."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from headwise.data.tokenizers import SPACE, token_names
from headwise.models.inspect import evaluating
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.report.explorer.inputs import (
    Input,
    Plain,
    Source,
    Trained,
    check_length,
    given_text,
)
from headwise.report.explorer.payload import Candidate, Made, Output, Prediction, Stack, not_finite
from headwise.report.plain_models import longest_input, setting, task_of
from headwise.tasks.scores import spread

_BEST = 5  # candidates of a prediction
_CLASSES = 10  # of the most probable that are shown
_TOKENS = 24  # of a continuation
_HIDDEN = 7  # one token in so many is hidden, where a text has no mask
_GREEDY = {"do_sample": False, "num_beams": 1}  # always the most probable token


def text_input(trained: Trained, source: Source) -> Input:
    """Returns a text that a user gives, or an item of the data, as the model of a run reads it."""
    text = given_text(source)
    if text is None:
        return _of_data(trained, source)
    return any_input(
        trained.model, trained.tokenizer, text, source.target, trained.target_tokenizer
    )


def _of_data(trained: Trained, source: Source) -> Input:
    """An item of the data; a sentence to translate is shown with its reference."""
    model, tokenizer, task = trained.model, trained.tokenizer, trained.task
    items, item = trained.item(source)
    batch = task.collate([items[item.number]])
    ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0]
    check_length(ids, longest_input(model, tokenizer), "the text")
    kind = task_of(model)
    if kind == "language-modelling":
        return replace(_continued(model, tokenizer, ids, None, []), item=item)
    if kind == "masked-language-modelling":
        true: dict[int, int | None] = {
            i: int(label) for i, label in enumerate(labels) if label != IGNORED_LABEL
        }
        return replace(_filled(model, tokenizer, ids, true), item=item)
    row = task.rows[source.part][item.number]
    if kind == "translation":
        reference = Made(label="reference", by_model=False, text=row["target"])
        into = trained.target_tokenizer
        given = _any_pair(model, tokenizer, into, ids, source.target, reference)
        return replace(given, text=row["source"], item=item)
    text = "\t".join(row[side] for side in ("text", "pair") if row.get(side))
    return replace(_classified(model, tokenizer, ids, str(row["label"])), text=text, item=item)


def plain_input(plain: Plain, source: Source) -> Input:
    """Returns a text as a model of no run reads it."""
    text = given_text(source)
    if text is None:
        raise ValueError(
            f"{plain.name} is a model without data, expected a text for it to read: give one by "
            f"--text or --input"
        )
    return any_input(plain.model, plain.tokenizer, text, source.target)


def any_input(
    model: nn.Module, tokenizer: Any, text: str, target: str | None, into: Any = None
) -> Input:
    """Returns a text as a model reads it.

    Args:
        model: any model that reads tokens.
        tokenizer: its tokenizer.
        text: the text. Of two for a classifier, a tab stands between them.
        target: what the decoder of a translation model reads; by default what it writes.
        into: the tokenizer of the target, if that has one of its own.
    """
    if not isinstance(text, str):
        raise ValueError(f"text is {text!r}, expected a single text for the model to read")
    if not text.strip():
        raise ValueError("text is empty, expected a text for the model to read")
    task = task_of(model)
    if target is not None and task != "translation":
        raise ValueError(f"target is given, but a {type(model).__name__} reads none; leave it out")
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"tokenizer is a {type(tokenizer).__name__}, expected a tokenizer of transformers "
            f"(PreTrainedTokenizerBase); transformers."
            f"PreTrainedTokenizerFast(tokenizer_object=...) makes one of a tokenizers.Tokenizer"
        )
    texts = text.split("\t", 1) if task == "classification" else [text]
    ids: list[int] = tokenizer(*texts)["input_ids"]
    if not ids:
        raise ValueError(f"text is {text!r}, of which the tokenizer makes nothing")
    longest = longest_input(model, tokenizer)
    check_length(ids, longest, "the text")
    if task == "translation":
        given = _any_pair(model, tokenizer, into or tokenizer, ids, target)
    elif task == "language-modelling":
        given = _any_continued(model, tokenizer, ids, longest)
    elif task == "masked-language-modelling":
        given = _filled(model, tokenizer, *_with_holes(ids, tokenizer))
    elif task == "classification":
        given = _classified(model, tokenizer, ids, None)
    else:
        given = Input(
            arguments={_argument(model): _batch(model, ids)},
            stacks={"input": _stack(tokenizer, ids)},
            output=lambda out: Output(),
        )
    return replace(given, text=text)


def _any_pair(
    model: Any,
    source: Tokenizer,
    tokenizer: Tokenizer,
    ids: list[int],
    target: str | None,
    *others: Made,
) -> Input:
    """A text with a target, or with what the model writes as its translation.

    A model of headwise searches as its generation config says; any other writes the most probable
    token each time.
    """
    if target is None:
        most = 2 * len(ids) + 20
        most = min(most, longest_input(model, tokenizer) or most)
        search = {} if isinstance(model, HeadwiseModel) else _GREEDY
        written = _generated(model, ids, most, search)[1:]  # behind the start
    else:
        written = tokenizer(text_target=target)["input_ids"]
    text = tokenizer.decode(written, skip_special_tokens=True)
    label = "translation" if target is None else "target"
    made = [Made(label=label, by_model=target is None, text=text), *others]
    return _pair(model, source, tokenizer, ids, written, target is not None, made)


def _any_continued(model: Any, tokenizer: Tokenizer, ids: list[int], longest: int | None) -> Input:
    """Lets the model continue a text, each time with the most probable token."""
    if ids[-1] == tokenizer.eos_token_id and len(ids) > 1:
        ids = ids[:-1]  # the text goes on
    given, room = len(ids), _room(len(ids), longest)
    written = _generated(model, ids, room, _GREEDY) if room else ids
    continuation = tokenizer.decode(written[given:], skip_special_tokens=True).strip()
    made = [Made(label="continuation", by_model=True, text=continuation)]
    return _continued(model, tokenizer, written, given, made)


def _pair(
    model: Any,
    source: Tokenizer,
    target: Tokenizer,
    ids: list[int],
    written: list[int],
    is_given: bool,
    made: list[Made],
) -> Input:
    """A text, and what is written behind the start: given by the user, or else by the model."""
    ends, longest = setting(model, "eos_token_id"), longest_input(model, target)
    ended = bool(written) and written[-1] in (ends if isinstance(ends, list) else [ends])
    # Its end is predicted only.
    read = [setting(model, "decoder_start_token_id"), *written[: len(written) - ended]]
    if is_given:
        check_length(read, longest, "the target")
    read = read[:longest]  # where positions end, a translation ends without <eos>
    true = [*written, None][: len(read)]
    return Input(
        arguments={"input_ids": _batch(model, ids), "decoder_input_ids": _batch(model, read)},
        stacks={
            "encoder": _stack(source, ids),
            "decoder": _stack(target, read, given=None if is_given else 1),
        },
        output=lambda out: Output(made=made, predictions=_next_tokens(target, out, true)),
    )


def _continued(
    model: Any,
    tokenizer: Tokenizer,
    ids: list[int],
    given: int | None,
    made: list[Made],
) -> Input:
    """A text for a decoder, which has written the tokens from the `given` one on."""
    true = [*ids[1:], None]
    return Input(
        arguments={"input_ids": _batch(model, ids)},
        stacks={"decoder": _stack(tokenizer, ids, given)},
        output=lambda out: Output(made=made, predictions=_next_tokens(tokenizer, out, true)),
    )


def _filled(model: Any, tokenizer: Tokenizer, ids: list[int], true: dict[int, int | None]) -> Input:
    """A text with holes: their positions, and what stood there; None where that is not known."""
    holes = list(true)

    def output(out: Any) -> Output:
        logits = out.logits[0, holes]  # (holes, tokens)
        filled = list(ids)
        for position, token in zip(holes, logits.argmax(-1).tolist(), strict=True):
            filled[position] = token
        text = tokenizer.decode(filled, skip_special_tokens=True)
        return Output(
            made=[Made(label="fill-in", by_model=True, text=text)],
            predictions=_predictions(tokenizer, "encoder", logits, holes, list(true.values())),
        )

    return Input(
        arguments={"input_ids": _batch(model, ids)},
        stacks={"encoder": _stack(tokenizer, ids)},
        output=output,
    )


def _checked(numbers: Tensor) -> Tensor:
    """Returns numbers that a model has made; raises `ValueError` if one is not finite."""
    if not numbers.isfinite().all():
        raise not_finite("the output of the model")
    return numbers


def _classified(model: Any, tokenizer: Tokenizer, ids: list[int], label: str | None) -> Input:
    """A text for a classifier, with its true class or number if that is known."""
    return Input(
        arguments={"input_ids": _batch(model, ids)},
        stacks={"encoder": _stack(tokenizer, ids)},
        output=lambda out: _classes(out.logits[0], model.config, label),
    )


def _classes(logits: Tensor, config: Any, label: str | None) -> Output:
    """The classes of a text, or its number."""
    if len(logits) == 1:
        return Output(number=float(_checked(logits)[0]), label=label)
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    shares = _checked(logits.float().sigmoid() if several else logits.float().softmax(-1))
    names = config.id2label or {}
    found = [
        Candidate(text=names.get(number, str(number)), probability=float(shares[number]))
        for number in shares.argsort(descending=True)[:_CLASSES].tolist()
    ]
    return Output(classes=found, label=label)


def _with_holes(ids: list[int], tokenizer: Tokenizer) -> tuple[list[int], dict[int, int | None]]:
    """Puts masks into a text; returns its tokens, and for each mask's position the hidden token.

    A mask that the user wrote hides None. If there is none, one token in seven is hidden.
    """
    mask = cast(int, tokenizer.mask_token_id)
    true: dict[int, int | None] = {i: None for i, token in enumerate(ids) if token == mask}
    if not true and mask is not None:
        special = set(tokenizer.all_special_ids)
        words = [i for i, token in enumerate(ids) if token not in special]
        hidden = spread(words[len(words) // (2 * _HIDDEN) :], -(-len(words) // _HIDDEN))
        true = {i: ids[i] for i in hidden}
    return [mask if i in true else token for i, token in enumerate(ids)], true


def _generated(model: Any, ids: list[int], most: int, search: dict[str, Any]) -> list[int]:
    """What a model writes, at most so many tokens."""
    batch, padding = _batch(model, ids), setting(model, "pad_token_id")
    with torch.no_grad(), evaluating(model):
        made = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=most,
            pad_token_id=0 if padding is None else padding,  # of which one text needs none
            **search,
        )
    return cast(Tensor, made)[0].tolist()


def _room(given: int, longest: int | None) -> int:
    """How many tokens of a continuation there is room for."""
    return _TOKENS if longest is None else min(_TOKENS, longest - given)


def _batch(model: nn.Module, ids: list[int]) -> Tensor:
    return torch.tensor([ids], device=next(model.parameters()).device)


def _argument(model: nn.Module) -> str:
    """The name by which a module takes token ids."""
    taken: Callable[..., Any] = model.forward
    names = list(inspect.signature(taken).parameters)
    return "input_ids" if "input_ids" in names or not names else names[0]


_names = lru_cache(maxsize=32)(token_names)  # of a large vocabulary they take a second


def _names_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What tokens are called: their text, with the space that they begin with."""
    names = _names(tokenizer)
    # An embedding may have more rows than there are tokens.
    return [names.get(token, str(token)).replace(SPACE, " ") for token in ids]


def _stack(tokenizer: Tokenizer, ids: Sequence[int], given: int | None = None) -> Stack:
    """A stack of tokens, of which the model has written those from the `given` one on."""
    special = set(tokenizer.all_special_ids)
    return Stack(
        kind="text",
        tokens=_names_of(tokenizer, ids),
        special=[position for position, token in enumerate(ids) if token in special],
        given=given,
    )


def _next_tokens(tokenizer: Tokenizer, out: Any, true: Sequence[int | None]) -> list[Prediction]:
    """What a decoder takes for probable behind each of its positions."""
    return _predictions(tokenizer, "decoder", out.logits[0], range(1, len(true) + 1), true)


def _predictions(
    tokenizer: Tokenizer,
    stack: str,
    logits: Tensor,
    positions: Sequence[int],
    true: Sequence[int | None],
) -> list[Prediction]:
    """What a model takes for probable at some positions of a stack."""
    shares = _checked(logits.float().softmax(-1).cpu())  # (positions, tokens)
    best = shares.topk(min(_BEST, shares.size(-1)))
    found = []
    for row, (position, token) in enumerate(zip(positions, true, strict=True)):
        names = _names_of(tokenizer, best.indices[row].tolist())
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
