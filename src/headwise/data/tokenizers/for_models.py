r"""The tokenizer in the folder of a model, with which other tools feed the model.

A run encodes its data with the tokenizer in its folder `tokenizer`, and each task puts the tokens
of a text together in its own way. Other tools know nothing of the task. So the folder of the model
has a tokenizer with the same vocabulary that does this work itself: what
`AutoTokenizer.from_pretrained("RUN/model")` makes of a text is what the model was trained on.

- Language models read a line end before the text and behind each line. There the token that ends a
  line is called `\n`, so that it is found in texts and written into them.
- Masked language models read `<bos> text <eos>`, and `<mask>` in the text hides a token.
- Classifiers read `<bos> text <eos>`, or `<bos> text <eos> <eos> second text <eos>`.

Other special tokens that are written out in a text of a classifier are ordinary text, as in
training, and so are those of a language model, except for `<pad>`.
"""

import json
from typing import Any

from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from headwise.models.for_tasks import LineTokenizer

LINE_END = "\n"

# Tokens without a mark of their own have a space before each.
_SPACE_BEFORE: dict[str, Any] = {"type": "Replace", "pattern": {"Regex": r"\A"}, "content": " "}
_FUSE = {"type": "Fuse"}


def language_model_tokenizer(
    tokenizer: PreTrainedTokenizerFast, max_length: int
) -> PreTrainedTokenizerFast:
    r"""Returns the tokenizer of a language model, which reads `max_length` tokens at once.

    Text that is decoded begins with the space before its first word: tools decode what a model has
    written without the prompt before it.

    Example:
        >>> from headwise.data.tokenizers.vocabularies import train_bpe
        >>> made = language_model_tokenizer(train_bpe(["a b", "a b"], 300), 64)
        >>> ids = made("a b\nb")["input_ids"]
        >>> [made.convert_ids_to_tokens(i) for i in ids]
        ['\n', 'Ġa', 'Ġb', '\n', 'Ġb']
    """
    state = _state(tokenizer)
    _exchange_names(state, str(tokenizer.eos_token), LINE_END)
    if all(token["special"] for token in state["added_tokens"]):
        # A text is divided at line ends alone. Lines have no white space around them in training.
        strip = {"type": "Strip", "strip_left": True, "strip_right": True}
        state["normalizer"] = _sequence("normalizers", strip, state["normalizer"])
    pad = str(tokenizer.pad_token)
    vocabulary = _names(state) - {LINE_END, pad}  # the others are found in texts no more
    state["added_tokens"] = [
        token for token in state["added_tokens"] if token["content"] not in vocabulary
    ]
    state["decoder"] = _without_first_strip(state["decoder"])
    return _made(
        LineTokenizer,
        tokenizer,
        state,
        max_length,
        single=[LINE_END, "$A"],
        pad_token=pad,
        bos_token=LINE_END,
        eos_token=LINE_END,
        padding_side="left",  # for generation
    )


def masked_model_tokenizer(
    tokenizer: PreTrainedTokenizerFast, max_length: int
) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a masked language model, which reads `max_length` tokens at once."""
    state = _state(tokenizer)
    named = _named(tokenizer)
    for token in state["added_tokens"]:
        if token["content"] in (named["mask_token"], named["eos_token"]):
            token["lstrip"] = True  # the space before a mask is part of what it hides
    prepend = {"type": "Prepend", "prepend": " "}
    if state["normalizer"] == prepend:
        # It would put a space behind each mask. This does so only at the beginning of the text.
        first = {
            "type": "Metaspace",
            "replacement": " ",
            "prepend_scheme": "first",
            "split": False,
        }
        state["normalizer"] = None
        state["pre_tokenizer"] = _sequence("pretokenizers", first, state["pre_tokenizer"])
    bos, eos = named["bos_token"], named["eos_token"]
    return _made(
        PreTrainedTokenizerFast,
        tokenizer,
        state,
        max_length,
        single=[bos, "$A", eos],
        pair=[bos, "$A", eos, "$B", eos],
        **named,
    )


def classifier_tokenizer(
    tokenizer: PreTrainedTokenizerFast, max_length: int
) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a classifier; `truncation=True` cuts to `max_length` tokens."""
    named = _named(tokenizer)
    bos, eos = named["bos_token"], named["eos_token"]
    single = [bos, "$A", eos]
    return _made(
        PreTrainedTokenizerFast,
        tokenizer,
        _state(tokenizer),
        max_length,
        single=single,
        pair=[*single, eos, "$B", eos],
        split_special_tokens=True,
        **named,
    )


def _state(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str())


def _named(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    roles = ("pad_token", "bos_token", "eos_token", "unk_token", "mask_token")
    return {role: str(token) for role in roles if (token := getattr(tokenizer, role))}


def _made(
    kind: type[PreTrainedTokenizerFast],
    tokenizer: PreTrainedTokenizerFast,
    state: dict[str, Any],
    max_length: int,
    *,
    single: list[str],
    pair: list[str] | None = None,
    **arguments: Any,
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a changed backend; `single` and `pair` are put around texts."""
    backend = Tokenizer.from_str(json.dumps(state))
    pair = pair or [*single, "$B"]
    special = sorted({piece for piece in pair if piece not in ("$A", "$B")})
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, backend.token_to_id(token)) for token in special],
    )
    return kind(
        tokenizer_object=backend,
        model_max_length=max_length,
        model_input_names=tokenizer.model_input_names,
        clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
        **arguments,
    )


def _exchange_names(state: dict[str, Any], one: str, other: str) -> None:
    """Gives a token of a backend another name; a token that has that name gets the first one's."""
    names = {one: other, other: one}
    model = state["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): i for token, i in vocabulary.items()}
    else:  # Unigram: pairs of a token and its score
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])


def _names(state: dict[str, Any]) -> set[str]:
    """The tokens of a backend's model, without those that were added to it."""
    vocabulary = state["model"]["vocab"]
    return set(vocabulary if isinstance(vocabulary, dict) else (token for token, _ in vocabulary))


def _without_first_strip(decoder: Any) -> dict[str, Any]:
    """Returns a decoder that keeps the space before the first word, but none around line ends."""
    steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder]
    kinds = [step and step["type"] for step in steps]
    # What stands between words is a token of its own, or part of one, for these.
    around = "\n " if "ByteLevel" in kinds else " ?\n ?"
    if steps == [None]:
        steps = [_SPACE_BEFORE]
    elif kinds == ["Replace", "Replace", "Fuse", "Strip"]:  # pieces of words, marked by @@
        open_end = {"type": "Replace", "pattern": {"String": "@@ "}, "content": ""}
        steps = [_SPACE_BEFORE, _FUSE, open_end]
    elif kinds == ["Metaspace"]:
        steps = [{**steps[0], "prepend_scheme": "never"}]
    steps = [step for step in steps if step["type"] != "Strip" or not step["start"]]
    newline = {"type": "Replace", "pattern": {"Regex": around}, "content": "\n"}
    return {"type": "Sequence", "decoders": [*steps, _FUSE, newline]}


def _sequence(name: str, first: dict[str, Any], then: dict[str, Any] | None) -> dict[str, Any]:
    """Returns one step of a backend before another, if there is another."""
    return {"type": "Sequence", name: [first, *([then] if then else [])]}
