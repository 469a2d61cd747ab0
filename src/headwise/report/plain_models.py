"""Models that are of no run: opened from a folder or the hub, and what they do with texts."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from headwise.analysis.cost import model_class
from headwise.data.tokenizers import read_tokenizer
from headwise.models.config import TransformerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.pretrained.gates import load_gates
from headwise.pretrained.hooks import NAME
from headwise.pretrained.pruning import HEADS_LEFT, load_pruned
from headwise.runs.names import FolderError

_UNSET = 10**9  # tokenizers that know no limit say 10³⁰


def open_plain(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model and the tokenizer that `save_pretrained` has written, or those of a name.

    The model is of the class that its config names, in evaluation, with the gates over its heads
    that were saved with it, or beside it.

    Raises:
        ValueError: one of them cannot be read.
    """
    name = folder if folder.is_dir() else folder.as_posix()
    try:
        config = AutoConfig.from_pretrained(name)
        named = (config.architectures or [""])[0]
        is_own = isinstance(config, TransformerConfig)
        kind = model_class(config) if is_own else getattr(transformers, named, AutoModel)
        is_pruned = hasattr(config, HEADS_LEFT)
        model = load_pruned(kind, name) if is_pruned else kind.from_pretrained(name)
    except Exception as error:  # transformers, its hub client and the Rust library raise anything
        where = "cannot be read" if folder.is_dir() else "is no folder, and no name on the hub"
        raise ValueError(f"{name} {where} that gives a model of transformers: {error}") from error
    try:
        tokenizer: Any = read_tokenizer(name)
        is_empty = set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids)
    except Exception as error:
        raise ValueError(f"{name} has no tokenizer that can be read: {error}") from error
    if is_empty:  # transformers makes one where there is none
        raise ValueError(
            f"{name} has no tokenizer, expected that of the model beside it: write it into the "
            f"folder by tokenizer.save_pretrained"
        )
    if any(_holds_gates(file) for file in folder.glob("*.safetensors")):
        load_gates(model, folder)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def _holds_gates(file: Path) -> bool:
    with safe_open(file, "pt") as tensors:
        return any(f"{NAME}.system." in name for name in tensors.keys())  # noqa: SIM118


def check_finite(folder: Path, model: nn.Module) -> None:
    """Raises `FolderError` if weights of a run's model are not finite: then it computes nothing."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise FolderError(
                f"{folder} has diverged: {name} has values that are not finite, so that its heads "
                f"do nothing to be looked at; leave the run out, or train it again with a smaller "
                f"training.learning_rate"
            )


def task_of(model: nn.Module) -> str:
    """What a model does with texts, by the name of a recipe's task; empty if that is not known.

    Raises:
        ValueError: a model of transformers reads no texts, or its decoder writes none.
    """
    kind, is_pair = type(model).__name__, getattr(_config(model), "is_encoder_decoder", False)
    reads = model.main_input_name if isinstance(model, PreTrainedModel) else "input_ids"
    if reads != "input_ids":
        raise ValueError(f"model is a {kind}, which reads {reads}, expected a model of texts")
    if getattr(model, "can_generate", bool)():
        return "translation" if is_pair else "language-modelling"
    if is_pair:
        raise ValueError(
            f"model is a {kind}, whose decoder writes nothing, expected one with its output over "
            f"the vocabulary, such as a ForConditionalGeneration"
        )
    names = " ".join(f"{base.__name__} " for base in type(model).__mro__)
    if "MaskedLM " in names:
        return "masked-language-modelling"
    is_classifier = "SequenceClassification " in names or "SequenceClassifier " in names
    return "classification" if is_classifier else ""


def longest_input(model: nn.Module, tokenizer: Any) -> int | None:
    """The most tokens that a model reads, as its config and its tokenizer say; None for any."""
    if not isinstance(model, PreTrainedModel):
        return getattr(_config(model), "max_positions", None)
    is_own = isinstance(model, HeadwiseModel)
    name = "max_positions" if is_own else "max_position_embeddings"
    positions = getattr(model.config, name, None) or _UNSET
    for path, module in model.named_modules():
        if (
            path.endswith("position_embeddings")
            and getattr(module, "padding_idx", None) is not None
        ):
            positions -= module.padding_idx + 1  # RoBERTa counts positions from behind that one
            break
    most: int = min(positions, tokenizer.model_max_length)
    return most if most < _UNSET else None


def setting(model: Any, name: str) -> Any:
    """The number of a token that a model's config has, or else that of its `generate()`."""
    given = getattr(model.config, name, None)
    return getattr(model.generation_config, name, None) if given is None else given


def _config(model: nn.Module) -> Any:
    return getattr(model, "config", None)
