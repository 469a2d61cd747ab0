"""Texts as models read them: of the data, of a run's user, or for any model and tokenizer."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from headwise.data.labelled.corpus import Example
from headwise.data.labelled.dataset import Examples
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.data.tokenizers.vocabularies import SPACE, token_names
from headwise.models.for_tasks import CausalLM, MaskedLM
from headwise.models.inspect import evaluating
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
from headwise.tasks.generating import GenerationSettings, continue_ids, prompt_ids
from headwise.tasks.scores import spread
from headwise.tasks.translating import translate_ids

_BEST = 5  # candidates of a prediction
_CLASSES = 10  # of the most probable that are shown
_TOKENS = 24  # of a continuation


def translation_input(trained: Trained, source: Source) -> Input:
    """Returns a sentence with its translation, which the decoder reads token by token."""
    model, tokenizer = trained.model, trained.pair_tokenizer
    text, item, reference = given_text(source), None, None
    if text is None:
        part, item = trained.item(source)
        text, reference = part.pairs[item.number]
    text = " ".join(text.split("\n"))
    (ids,) = tokenizer.source.encode([text])
    check_length(ids, model.config.max_positions, "the text")
    (made,) = translate_ids(model, tokenizer, [ids], trained.recipe.evaluation)
    if tokenizer.eos_token_id in made:
        made = made[: made.index(tokenizer.eos_token_id) + 1]
    (translation,) = tokenizer.decode_target([made])
    texts = {"translation": translation, "target": source.target, "reference": reference}
    shown = [
        Made(label=label, by_model=label == "translation", text=each)
        for label, each in texts.items()
        if each is not None
    ]
    is_given = source.target is not None
    written = tokenizer.target.encode([source.target])[0] if source.target is not None else made
    given = _pair(
        model, tokenizer.source.tokenizer, tokenizer.target.tokenizer, ids, written, is_given, shown
    )
    return replace(given, text=text, item=item)


def language_input(trained: Trained, source: Source) -> Input:
    """Returns a text to continue with its continuation, or a block of the data."""
    tokenizer, longest = trained.tokenizer, trained.model.config.max_positions
    text = given_text(source)
    if text is None:
        part, item = trained.item(source)
        ids = part[item.number].tolist()
        check_length(ids, longest, "the text")
        return replace(_continued(trained.model, tokenizer.tokenizer, ids, None, []), item=item)
    ids = prompt_ids(tokenizer, text)
    check_length(ids, longest, "the text")
    given = len(ids)
    room = _room(given, longest)
    generation = trained.recipe.evaluation.generation
    settings = GenerationSettings(
        max_new_tokens=min(generation.max_new_tokens, max(1, room)),
        lines=generation.lines,
        temperature=0,  # what changes by an ablation is then no matter of chance
    )
    ids += continue_ids(trained.model, ids, tokenizer.eos_token_id, settings, seed=0)[:room]
    before, after = tokenizer.decode([ids[1:given], ids[1:]])
    made = [Made(label="continuation", by_model=True, text=after[len(before) :].strip())]
    return replace(_continued(trained.model, tokenizer.tokenizer, ids, given, made), text=text)


def masked_input(trained: Trained, source: Source) -> Input:
    """Returns a text in which tokens are hidden, by the user or else some of it."""
    tokenizer = trained.tokenizer
    text, item = given_text(source), None
    if text is None:
        part, item = trained.item(source)
        drawn = part.draw(item.number, 0)
        ids, labels = drawn["input_ids"], drawn["labels"]
        true = {i: label for i, label in enumerate(labels) if label != IGNORED_LABEL}
    else:
        ids, true = _with_holes(text, tokenizer)
    check_length(ids, trained.model.config.max_positions, "the text")
    return replace(_filled(trained.model, tokenizer.tokenizer, ids, true), text=text, item=item)


def labelled_input(trained: Trained, source: Source) -> Input:
    """Returns a text to classify, or two that a tab divides."""
    tokenizer = trained.tokenizer
    item = label = None
    text = given_text(source)
    if text is None:
        part, item = trained.item(source)
        ids, example = part[item.number]["input_ids"], part.examples[item.number]
        text = example.text if example.pair is None else f"{example.text}\t{example.pair}"
        label = str(example.label)
    else:
        first, _, second = text.partition("\t")
        if not first.strip():
            raise ValueError("text is empty, expected one, or two that a tab divides")
        # A regression has no classes, so that any number is a label.
        texts = [first, second] if second.strip() else [first]
        longest = sum(len(row) + 1 for row in tokenizer.encode(texts))
        example = Example(first, texts[1] if second.strip() else None, 0.0)
        ids = Examples([example], tokenizer, None, longest)[0]["input_ids"]
        check_length(ids, trained.recipe.data.max_length, "the text")
    check_length(ids, trained.model.config.max_positions, "the text")
    given = _classified(trained.model, tokenizer.tokenizer, ids, label)
    return replace(given, text=text, item=item)


def plain_input(plain: Plain, source: Source) -> Input:
    """Returns a text as a model of no run reads it."""
    text = given_text(source)
    if text is None:
        raise ValueError(
            f"{plain.name} is a model without data, expected a text for it to read: give one "
            f"behind the model, or by --text or --input"
        )
    return replace(any_input(plain.model, plain.tokenizer, text, source.target), text=text)


def any_input(model: nn.Module, tokenizer: Any, text: str, target: str | None) -> Input:
    """Returns a text as a model reads it that is of no run."""
    if not isinstance(text, str):
        raise ValueError(f"text is {text!r}, expected a single text for the model to read")
    if not text.strip():
        raise ValueError("text is empty, expected a text for the model to read")
    task = task_of(model)
    if target is not None and task != "translation":
        raise ValueError(f"target is given, but a {type(model).__name__} reads none; leave it out")
    # headwise's tokenizers hold those of one or two languages.
    source, into = (
        getattr(each, "tokenizer", each)
        for each in (getattr(tokenizer, side, tokenizer) for side in ("source", "target"))
    )
    if not isinstance(source, PreTrainedTokenizerBase):
        raise ValueError(
            f"tokenizer is a {type(source).__name__}, expected a tokenizer of transformers "
            f"(PreTrainedTokenizerBase), or the tokenizer of a run; transformers."
            f"PreTrainedTokenizerFast(tokenizer_object=...) makes one of a tokenizers.Tokenizer"
        )
    ids, true = _tokens(model, tokenizer, source, text)
    longest = longest_input(model, source)
    check_length(ids, longest, "the text")
    if task == "translation":
        return _any_pair(model, source, into, ids, target)
    if task == "language-modelling":
        return _any_continued(model, source, ids, longest)
    if task == "masked-language-modelling":
        return _filled(model, source, ids, true)
    if task == "classification":
        return _classified(model, source, ids, None)
    return Input(
        arguments={_argument(model): _batch(model, ids)},
        stacks={"input": _stack(source, ids)},
        output=lambda out: Output(),
    )


def _tokens(
    model: nn.Module, tokenizer: Any, source: PreTrainedTokenizerBase, text: str
) -> tuple[list[int], dict[int, int | None]]:
    """The tokens of a text as a model has learned to read it, and those that are hidden."""
    is_own = isinstance(tokenizer, TextTokenizer)
    if is_own and isinstance(model, CausalLM):
        return prompt_ids(tokenizer, text), {}
    if is_own and isinstance(model, MaskedLM):
        return _with_holes(text, tokenizer)
    ids = _encoded(source, text)
    if is_own:
        ids = [tokenizer.bos_token_id, *ids]
    return ids, {i: None for i, token in enumerate(ids) if token == source.mask_token_id}


def _any_pair(
    model: Any,
    source: PreTrainedTokenizerBase,
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    target: str | None,
) -> Input:
    """A text with a target, or with what the model writes as its translation.

    The model writes the most probable token each time.
    """
    if target is None:
        most = 2 * len(ids) + 20
        most = min(most, longest_input(model, tokenizer) or most)
        written = _generated(model, ids, most)[1:]  # behind the start
    else:
        written = tokenizer(text_target=target)["input_ids"]
    text = tokenizer.decode(written, skip_special_tokens=True)
    label = "translation" if target is None else "target"
    made = [Made(label=label, by_model=target is None, text=text)]
    return _pair(model, source, tokenizer, ids, written, target is not None, made)


def _any_continued(
    model: Any, tokenizer: PreTrainedTokenizerBase, ids: list[int], longest: int | None
) -> Input:
    """A text and how the model continues it, with the most probable token each time."""
    if ids[-1] == tokenizer.eos_token_id and len(ids) > 1:
        ids = ids[:-1]  # the text goes on
    given, room = len(ids), _room(len(ids), longest)
    written = _generated(model, ids, room) if room else ids
    continuation = tokenizer.decode(written[given:], skip_special_tokens=True)
    made = [Made(label="continuation", by_model=True, text=continuation)]
    return _continued(model, tokenizer, written, given, made)


def _pair(
    model: Any,
    source: PreTrainedTokenizerBase,
    target: PreTrainedTokenizerBase,
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
    tokenizer: PreTrainedTokenizerBase,
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


def _filled(
    model: Any, tokenizer: PreTrainedTokenizerBase, ids: list[int], true: dict[int, int | None]
) -> Input:
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


def _classified(
    model: Any, tokenizer: PreTrainedTokenizerBase, ids: list[int], label: str | None
) -> Input:
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


def _with_holes(text: str, tokenizer: TextTokenizer) -> tuple[list[int], dict[int, int | None]]:
    """The tokens of a text, the positions that are hidden, and what stood there.

    A `<mask>` in the text is a hole; what stood there is None. If there is none, about one token in
    seven is hidden.
    """
    mask = cast(int, tokenizer.mask_token_id)
    ids = [tokenizer.bos_token_id]
    for number, piece in enumerate(text.split(tokenizer.tokenizer.mask_token)):
        ids += [mask] * (number > 0)
        ids += tokenizer.encode([piece.strip()], eos=False)[0] if piece.strip() else []
    ids.append(tokenizer.eos_token_id)
    true: dict[int, int | None] = {i: None for i, token in enumerate(ids) if token == mask}
    if not true:
        words = range(1, len(ids) - 1)
        true = {i: ids[i] for i in spread(words[len(words) // 14 :], -(-len(words) // 7))}
    return [mask if i in true else token for i, token in enumerate(ids)], true


def _generated(model: Any, ids: list[int], most: int) -> list[int]:
    """What a model writes, at most so many tokens, by always taking the most probable one."""
    batch, padding = _batch(model, ids), setting(model, "pad_token_id")
    with torch.no_grad(), evaluating(model):
        made = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            num_beams=1,
            max_new_tokens=most,
            pad_token_id=0 if padding is None else padding,  # of which one text needs none
        )
    return cast(Tensor, made)[0].tolist()


def _room(given: int, longest: int | None) -> int:
    """How many tokens of a continuation there is room for."""
    return _TOKENS if longest is None else min(_TOKENS, longest - given)


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
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


_names = lru_cache(maxsize=32)(token_names)  # of a large vocabulary they take a second


def _names_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """What tokens are called: their text, with the space that they begin with."""
    names = _names(tokenizer)
    # An embedding may have more rows than there are tokens.
    return [names.get(token, str(token)).replace(SPACE, " ") for token in ids]


def _stack(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], given: int | None = None
) -> Stack:
    """A stack of tokens, of which the model has written those from the `given` one on."""
    special = set(tokenizer.all_special_ids)
    return Stack(
        kind="text",
        tokens=_names_of(tokenizer, ids),
        special=[position for position, token in enumerate(ids) if token in special],
        given=given,
    )


def _next_tokens(
    tokenizer: PreTrainedTokenizerBase, out: Any, true: Sequence[int | None]
) -> list[Prediction]:
    """What a decoder takes for probable behind each of its positions."""
    return _predictions(tokenizer, "decoder", out.logits[0], range(1, len(true) + 1), true)


def _predictions(
    tokenizer: PreTrainedTokenizerBase,
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
