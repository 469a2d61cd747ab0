"""Models that are of no run: opened from a folder or the hub, and what they read of texts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from headwise.data.encode import pad
from headwise.data.tokenizers import read_tokenizer, token_names
from headwise.models import for_tasks, speech
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.pretrained.gates import load_gates
from headwise.pretrained.hooks import NAME
from headwise.pretrained.pruning import HEADS_LEFT, load_pruned
from headwise.tasks.scores import spread
from headwise.tasks.task import Positions

_HIDDEN = 7  # one token in so many is hidden from a masked language model
_UNSET = 10**9  # tokenizers that know no limit say 10³⁰


def open_plain(name: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Returns the model and the tokenizer that a folder holds, or those of a name on the hub.

    The model is of the class that its config names, in evaluation mode, with the heads that
    `prune_heads` has left, and with the gates that were saved with it, or beside it.

    Raises:
        ValueError: one of them cannot be read, or a weight is not finite.
    """
    folder, source = Path(name), str(name)
    try:
        config = AutoConfig.from_pretrained(source)
        named = (config.architectures or [""])[0]
        there = (getattr(module, named, None) for module in (for_tasks, speech, transformers))
        kind: Any = next(filter(None, there), AutoModel)
        is_pruned = hasattr(config, HEADS_LEFT)
        model = load_pruned(kind, source) if is_pruned else kind.from_pretrained(source)
    except Exception as error:  # transformers, its hub client and the Rust library raise anything
        where = "cannot be read" if folder.is_dir() else "is no folder, and no name on the hub"
        raise ValueError(f"{name} {where} that gives a model of transformers: {error}") from error
    try:
        tokenizer = read_tokenizer(source)
    except ValueError as error:
        raise ValueError(f"{name} has no tokenizer that can be read: {error}") from error
    # transformers makes one where there is none.
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        raise ValueError(
            f"{name} has no tokenizer, expected that of the model beside it: write it into the "
            f"folder by tokenizer.save_pretrained"
        )
    if any(map(_holds_gates, folder.glob("*.safetensors"))):
        load_gates(model, folder)
    check_finite(model, source)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def _holds_gates(file: Path) -> bool:
    with safe_open(file, "pt") as tensors:
        return any(f"{NAME}.system." in name for name in tensors.keys())  # noqa: SIM118


def check_finite(model: nn.Module, name: str | Path) -> None:
    """Raises `ValueError` if weights of a model are not finite: then it computes nothing."""
    for of, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(
                f"{name} has weights that are not finite, the first in {of}, so that its heads do "
                f"nothing that could be looked at: leave it out, or train it again with a smaller "
                f"training.learning_rate"
            )


def task_of(model: nn.Module) -> str:
    """Returns the task that a model is made for, such as translation; empty if it is not known.

    Raises:
        ValueError: the model reads no texts, or its decoder writes none.
    """
    kind, config = type(model), getattr(model, "config", None)
    is_pair = getattr(config, "is_encoder_decoder", False)
    reads = getattr(model, "main_input_name", "input_ids")
    if reads != "input_ids":
        raise ValueError(
            f"model is a {kind.__name__}, which reads {reads}, expected a model of texts"
        )
    if getattr(model, "can_generate", bool)():
        return "translation" if is_pair else "language-modelling"
    if is_pair:
        raise ValueError(
            f"model is a {kind.__name__}, whose decoder writes nothing, expected one with its "
            f"output over the vocabulary, such as a ForConditionalGeneration"
        )
    names = [base.__name__ for base in kind.__mro__]
    if any(name.endswith("MaskedLM") for name in names):
        return "masked-language-modelling"
    ends = ("SequenceClassification", "SequenceClassifier")
    return "classification" if any(name.endswith(ends) for name in names) else ""


def longest_input(model: nn.Module, tokenizer: Any) -> int | None:
    """Returns how many tokens a model reads at most; None if nothing limits it."""
    name = "max_positions" if isinstance(model, HeadwiseModel) else "max_position_embeddings"
    positions: int = getattr(getattr(model, "config", None), name, None) or _UNSET
    for path, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if path.endswith("position_embeddings") and padding is not None:
            positions -= padding + 1  # RoBERTa counts positions from behind that one
            break
    most: int = min(positions, tokenizer.model_max_length)
    return most if most < _UNSET else None


def text_batch(
    model: nn.Module, tokenizer: Any, texts: Sequence[str], targets: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Returns texts as a batch: keyword arguments of a model's forward.

    It has `input_ids`; masks, if some positions are padding; and `labels`, if the model is a
    language model, or if there are targets. Texts that are too long for the model are cut.

    Args:
        model: a model of texts.
        tokenizer: its tokenizer.
        texts: what the encoder, or the only stack, reads.
        targets: of each text its translation, for an encoder-decoder model, or the name or the
            number of its class, for a classifier.

    Raises:
        ValueError: a text has no token, or a class is none of the model's.
    """
    task, longest = task_of(model), longest_input(model, tokenizer)
    limits = {} if longest is None else {"truncation": True, "max_length": longest}

    def encoded(**of: Sequence[str]) -> list[list[int]]:
        rows: list[list[int]] = tokenizer(**of, **limits, verbose=False)["input_ids"]
        for row, text in zip(rows, next(iter(of.values())), strict=True):
            if not row:
                raise ValueError(f"the text {text!r} has no token, expected one at least")
        return rows

    items: list[dict[str, Any]] = [{"input_ids": row} for row in encoded(text=list(texts))]
    if task == "language-modelling":
        items = [{**item, "labels": item["input_ids"]} for item in items]
    elif task == "translation" and targets is not None:
        rows = encoded(text_target=list(targets))
        items = [{**item, "labels": row} for item, row in zip(items, rows, strict=True)]
    elif task == "classification" and targets is not None:
        of = [_class(model, target) for target in targets]
        items = [{**item, "labels": label} for item, label in zip(items, of, strict=True)]
    fill = {"input_ids": tokenizer.pad_token_id or 0, "attention_mask": 0}
    fill |= {} if task == "classification" else {"labels": IGNORED_LABEL}
    batch = pad([{**item, "attention_mask": [1] * len(item["input_ids"])} for item in items], fill)
    if batch["attention_mask"].all():
        del batch["attention_mask"]
    if task == "translation" and (batch.get("labels", batch["input_ids"]) == IGNORED_LABEL).any():
        batch["decoder_attention_mask"] = (batch["labels"] != IGNORED_LABEL).long()
    return {name: tensor.to(_device(model)) for name, tensor in batch.items()}


def hide_words(batch: Mapping[str, Tensor], tokenizer: Any) -> dict[str, Tensor]:
    """Hides one token in seven from a masked language model, and labels them.

    They are spread evenly over each text, the same each time. Special tokens are not hidden.
    """
    ids = batch["input_ids"].clone()
    labels = torch.full_like(ids, IGNORED_LABEL)
    special = torch.tensor([*tokenizer.all_special_ids], device=ids.device)
    for row, to_predict in zip(ids, labels, strict=True):
        words = (~torch.isin(row, special)).nonzero()[:, 0].tolist()
        hidden = spread(words[len(words) // (2 * _HIDDEN) :], -(-len(words) // _HIDDEN))
        to_predict[hidden] = row[hidden]
        row[hidden] = tokenizer.mask_token_id
    return {**batch, "input_ids": ids, "labels": labels}


def describe_text(
    model: nn.Module, tokenizer: Any
) -> Callable[[Mapping[str, Tensor]], dict[str, Positions]]:
    """Returns a function that says which tokens a batch has in each stack, as `Task.describe`.

    A decoder reads what `decoder_input_ids` say, or else the labels, one position later.
    """
    names, task = token_names(tokenizer), task_of(model)

    def positions(tokens: Tensor, mask: Tensor | None) -> Positions:
        there = tokens if mask is None else tokens.masked_fill(mask == 0, -1)
        return Positions.of_tokens(there, names)

    def describe(batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        read = positions(batch["input_ids"], batch.get("attention_mask"))
        if task != "translation":
            return {"encoder": read, "decoder": read}  # a model has one of the two
        tokens, shifted = batch.get("decoder_input_ids"), _shift(model)
        if tokens is None and "labels" in batch and shifted is not None:
            tokens = shifted(labels=batch["labels"])
        if tokens is None:
            return {"encoder": read}
        mask = batch.get("decoder_attention_mask")
        return {"encoder": read, "decoder": positions(tokens, mask)}

    return describe


def _shift(model: Any) -> Any:
    return getattr(model, "prepare_decoder_input_ids_from_labels", None)


def _class(model: Any, name: str) -> int:
    classes = model.config.id2label.items()
    known = {str(key): int(number) for number, label in classes for key in (number, label)}
    if name not in known or len(classes) < 2:
        raise ValueError(
            f"the class is {name!r}, expected one of {', '.join(known)}, and a model of several "
            f"classes"
        )
    return known[name]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
