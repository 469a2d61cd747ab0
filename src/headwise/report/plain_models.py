"""Models that are of no run: opened from a folder or the hub, and what they do with texts."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from headwise.data.tokenizers.vocabularies import read_tokenizer
from headwise.models.base import HeadwiseModel
from headwise.models.trust import is_trusting
from headwise.pretrained.saving import DESCRIPTION, load_gates
from headwise.runs.folder import MODEL, RECIPE

_CONFIG = "config.json"
_UNSET = 10**9  # tokenizers that know no limit say 10³⁰


def is_plain(folder: Path) -> bool:
    """Whether a command's argument is a model of transformers, or its name, rather than a run."""
    if folder.is_dir():
        is_run = (folder / RECIPE).exists() or any(folder.glob(f"*/{MODEL}"))
        return not is_run and (folder / _CONFIG).exists()
    # `runs/mae` may be a name of the hub too; where there is a folder `runs`, it is mistyped.
    return len(folder.parts) <= 2 and str(folder.parent) in (".", *_names_of_hub(folder))


def _names_of_hub(folder: Path) -> list[str]:
    return [] if folder.parent.is_dir() or folder.is_absolute() else [str(folder.parent)]


def open_plain(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model and the tokenizer that `save_pretrained` has written, or those of a name.

    The model is of the class that its config names, in evaluation, with the gates that
    `headwise.save_gates` has put beside it.

    Raises:
        ValueError: one of them cannot be read.
    """
    name = folder if folder.is_dir() else folder.as_posix()
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=is_trusting())
        kind = getattr(transformers, next(iter(config.architectures or ()), ""), AutoModel)
        model = kind.from_pretrained(name)
    except Exception as error:  # transformers, its hub client and the Rust library raise anything
        where = "cannot be read as a model of transformers"
        if not folder.is_dir():
            where = "is no folder, and cannot be had from the Hugging Face hub by that name"
        raise ValueError(f"{name} {where}: {error}") from error
    try:
        tokenizer: Any = read_tokenizer(name)
        is_empty = set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids)
    except Exception as error:
        raise ValueError(f"{name} has no tokenizer that can be read: {error}") from error
    if is_empty:  # transformers makes one where there is none
        raise ValueError(
            f"{name} has no tokenizer, expected one beside the model: write the tokenizer that "
            f"the model was trained with into the folder by its save_pretrained"
        )
    if (folder / DESCRIPTION).is_file():
        load_gates(model, folder)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def task_of(model: nn.Module) -> str:
    """What a model does with texts, by the name of a recipe's task; empty if that is not known.

    >>> import headwise as hw
    >>> sizes = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}
    >>> task_of(hw.MaskedLM(hw.MaskedLMConfig(**sizes)))
    'masked-language-modelling'
    """
    config = getattr(model, "config", None)
    if getattr(model, "can_generate", bool)():
        is_pair = getattr(config, "is_encoder_decoder", False)
        return "translation" if is_pair else "language-modelling"
    names = [kind.__name__ for kind in type(model).__mro__]
    if any(name.endswith("MaskedLM") for name in names):
        return "masked-language-modelling"
    is_classifier = any(name.endswith(("Classification", "Classifier")) for name in names)
    return "classification" if is_classifier else ""


def check_reads_texts(model: nn.Module) -> None:
    """Raises `ValueError` if a model of transformers takes no token ids, or has no output."""
    reads = getattr(model, "main_input_name", "input_ids")
    if isinstance(model, PreTrainedModel) and reads != "input_ids":
        raise ValueError(
            f"model is a {type(model).__name__}, which reads {reads}, expected a model of texts, "
            f"which reads input_ids"
        )
    is_pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if is_pair and task_of(model) != "translation":
        raise ValueError(
            f"model is a {type(model).__name__}, whose decoder writes nothing, expected one with "
            f"its output over the vocabulary, such as a ForConditionalGeneration or an MTModel"
        )


def longest_input(model: nn.Module, tokenizer: Any) -> int | None:
    """The most tokens that a model reads, as its config and its tokenizer say; None for any."""
    config = getattr(model, "config", None)
    if isinstance(model, HeadwiseModel) or not isinstance(model, PreTrainedModel):
        return getattr(config, "max_positions", None)
    most = getattr(config, "max_position_embeddings", None) or _UNSET
    for name, module in model.named_modules():  # RoBERTa counts positions behind that of padding
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            most = min(most, module.num_embeddings - padding - 1)
    most = min(most, tokenizer.model_max_length)
    return most if most < _UNSET else None


def setting(model: Any, name: str) -> Any:
    """A token of a model's, which stands in its config or in that of `generate()`."""
    given = getattr(model.config, name, None)
    return getattr(model.generation_config, name, None) if given is None else given
