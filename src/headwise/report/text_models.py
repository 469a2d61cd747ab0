"""Models of transformers that read texts: opening them, and making batches of a text."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from headwise import models
from headwise.analysis.decisions import Batch, Describe
from headwise.data.tokenizers import read_tokenizer
from headwise.ops import IGNORED_LABEL
from headwise.pretrained.gates import load_gates
from headwise.pretrained.head_gates import CHILD
from headwise.pretrained.pruning import HEADS_LEFT, load_pruned
from headwise.tasks.scores import spread
from headwise.tasks.task import Positions
from headwise.training.loss import on_device

Names = Mapping[int, str] | Callable[[int], str]  # of tokens

_HIDDEN_ONE_IN = 7  # one token in so many is hidden from a masked language model
_NO_LIMIT = 10**9  # tokenizers that know no limit say 10³⁰


def open_transformers_model(name: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Returns the model and the tokenizer that a folder holds, or those of a name on the hub.

    The model is of the class that its config names, in evaluation mode, with the heads that
    `prune_heads` has left, and with the gates that were saved beside it.

    Raises:
        ValueError: one of them cannot be read, or a weight is not finite.
    """
    folder, source = Path(name), str(name)
    try:
        config = AutoConfig.from_pretrained(source)
        class_name = (config.architectures or [""])[0]
        modules = (models.text, models.speech, transformers)
        classes = (getattr(module, class_name, None) for module in modules)
        model_class: Any = next(filter(None, classes), AutoModel)
        if hasattr(config, HEADS_LEFT):
            model = load_pruned(model_class, source)
        else:
            model = model_class.from_pretrained(source)
    except Exception as error:  # transformers, its hub client and the Rust library raise anything
        where = "cannot be read" if folder.is_dir() else "is no folder, and no name on the hub"
        raise ValueError(f"{name} {where} that gives a model of transformers: {error}") from error
    tokenizer = read_tokenizer(source)
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
        return any(f"{CHILD}.system." in name for name in tensors.keys())  # noqa: SIM118


def check_finite(model: nn.Module, name: str | Path) -> None:
    """Raises `ValueError` if weights of a model are not finite: then it computes nothing."""
    for parameter_name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(
                f"{name} has weights that are not finite, the first in {parameter_name}, so that "
                f"its heads compute nothing: leave it out, or train it again with a smaller "
                f"training.learning_rate"
            )


def text_task(model: nn.Module) -> str:
    """Returns the task that a model is made for, such as translation; empty if it is not known.

    Raises:
        ValueError: the model reads no texts, or its decoder writes none.
    """
    is_pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    writes = getattr(model, "can_generate", bool)()
    if getattr(model, "main_input_name", "input_ids") != "input_ids" or (is_pair and not writes):
        raise ValueError(
            f"model is a {type(model).__name__}, expected one that reads texts (input_ids), and "
            f"whose decoder, if it has one, writes them, such as a ForConditionalGeneration"
        )
    if writes:
        return "translation" if is_pair else "language-modelling"
    names = " ".join(f"{base.__name__} " for base in type(model).__mro__)
    if "MaskedLM " in names:
        return "masked-language-modelling"
    return "classification" if "SequenceClassif" in names else ""


def longest_input(model: nn.Module, tokenizer: Any) -> int | None:
    """Returns how many tokens a model reads at most; None if nothing limits it."""
    config = getattr(model, "config", None)
    limits = (getattr(config, name, None) for name in ("max_positions", "max_position_embeddings"))
    positions: int = next(filter(None, limits), _NO_LIMIT)
    embedding = getattr(getattr(model, "base_model", None), "embeddings", None)
    padding = getattr(getattr(embedding, "position_embeddings", None), "padding_idx", None)
    if padding is not None:
        positions -= padding + 1  # RoBERTa counts positions from behind that one
    longest: int = min(positions, tokenizer.model_max_length)
    return longest if longest < _NO_LIMIT else None


def text_batch(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    target: str | None = None,
    target_tokenizer: Any = None,
) -> dict[str, Tensor]:
    """Returns a text as a batch of one: keyword arguments of a model's forward.

    What is too long for the model is cut. The batch has `labels` if the model is a language model,
    or if there is a target.

    Args:
        model: a model of texts.
        tokenizer: its tokenizer.
        text: what the encoder, or the only stack, reads; a tab divides two texts for a classifier.
        target: a translation, for an encoder-decoder model.
        target_tokenizer: the tokenizer of translations, if it is another one.

    Raises:
        ValueError: the text has no token.
    """
    task, longest = text_task(model), longest_input(model, tokenizer)
    options: dict[str, Any] = {"return_tensors": "pt", "verbose": False}
    if longest is not None:
        options |= {"truncation": True, "max_length": longest}
    texts = text.split("\t", 1) if task == "classification" else [text]
    batch = dict(tokenizer(*texts, **options))
    if task == "language-modelling":
        batch["labels"] = batch["input_ids"]
    elif task == "translation" and target is not None:
        target_tokenizer = target_tokenizer or tokenizer
        batch["labels"] = target_tokenizer(text_target=[target], **options)["input_ids"]
    for name in ("input_ids", "labels"):
        if name in batch and not batch[name].numel():
            raise ValueError(f"the text {text!r} has no token, expected one at least")
    device = next(model.parameters()).device
    return with_decoder_inputs(model, on_device(batch, device))


def with_decoder_inputs(model: Any, batch: Batch) -> dict[str, Any]:
    """Adds the input of a decoder, if there is none: the labels, one position later."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is None or "labels" not in batch or "decoder_input_ids" in batch:
        return dict(batch)
    return {**batch, "decoder_input_ids": shift(labels=batch["labels"])}


def hide_words(batch: Mapping[str, Tensor], tokenizer: Any) -> dict[str, Tensor]:
    """Hides one token in seven from a masked language model, and makes labels of the hidden ones.

    The hidden tokens are spread evenly over the text, always the same. Special tokens stay.
    """
    ids = batch["input_ids"].clone()
    labels = torch.full_like(ids, IGNORED_LABEL)
    special = torch.tensor([*tokenizer.all_special_ids], device=ids.device)
    words = (~torch.isin(ids[0], special)).nonzero()[:, 0].tolist()
    hidden = spread(words[len(words) // (2 * _HIDDEN_ONE_IN) :], -(-len(words) // _HIDDEN_ONE_IN))
    labels[0, hidden] = ids[0, hidden]
    ids[0, hidden] = tokenizer.mask_token_id
    return {**batch, "input_ids": ids, "labels": labels}


def describe_tokens(
    names: Names = str, target_names: Names | None = None, argument: str | None = None
) -> Describe:
    """Returns a function that finds the tokens of a batch in each stack, like `Task.describe`.

    Args:
        names: the name of each token, or a function that returns it; by default its number.
        target_names: those of the decoder, if it has others.
        argument: name of the argument with the tokens, which each batch must have. By default these
            are the `input_ids`; a batch without any has positions alone.
    """

    def describe(batch: Batch) -> dict[str, Positions]:
        if argument and argument not in batch:
            raise ValueError(
                f"tokens names {argument!r}, which a batch lacks: it has {', '.join(batch)}"
            )
        arguments = {"encoder": argument or "input_ids", "decoder": "decoder_input_ids"}
        stacks = {}
        for stack, name in arguments.items():
            if (ids := batch.get(name)) is not None:
                known = target_names or names if stack == "decoder" else names
                if callable(known):
                    known = {n: str(known(n)) for n in ids.unique().tolist() if n >= 0}
                stacks[stack] = Positions(ids.shape, ids, known)
        if not stacks:
            first = next(x for x in batch.values() if isinstance(x, Tensor))
            stacks["encoder"] = Positions(first.shape[:2])
        return stacks

    return describe
