"""Masked language models that headwise has trained, as the beginning of other tasks."""

from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig

from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.tasks.text.tokenization import TOKENIZER, TextTokenizer


def model_folder(folder: Path) -> Path:
    """Where the model is, given the folder of a run or of its model."""
    folder = folder.expanduser()
    return folder if (folder / "config.json").is_file() else folder / "model"


def pretrained_config(folder: Path) -> MaskedLMConfig | None:
    """The configuration of the model there; None if there is nothing.

    Raises:
        ValueError: there is another kind of model.
    """
    path = model_folder(folder) / "config.json"
    if not path.is_file():
        return None
    values, _ = PreTrainedConfig.get_config_dict(path.parent)
    if values.get("model_type") != MaskedLMConfig.model_type:
        raise ValueError(
            f"pretrained is {folder}, a model of type {values.get('model_type')!r}, expected "
            f"{MaskedLMConfig.model_type!r}: the run of a recipe of masked language modelling"
        )
    return MaskedLMConfig.from_dict(values)


def pretrained_tokenizer(folder: Path) -> TextTokenizer:
    """The vocabulary of the run whose model is in the folder, or in it under `model`."""
    model = model_folder(folder)
    if not (model / "config.json").is_file():
        raise ValueError(
            f"model.pretrained is {folder}, where there is no model: name the folder of a run of "
            f"masked language modelling that `headwise train` or `headwise compare` has finished"
        )
    return TextTokenizer.load(model.parent / TOKENIZER)


def load_encoder(encoder: nn.Module, folder: Path, tokenizer: TextTokenizer) -> None:
    """Give an encoder the weights of the one in the folder.

    Args:
        encoder: of the same sizes and attention.
        folder: of the run, or of its model.
        tokenizer: what the encoder will read; it must be the one that the run has.

    Raises:
        ValueError: there is no model, or one with another vocabulary or other sizes.
    """
    there = pretrained_tokenizer(folder).tokenizer.backend_tokenizer
    if there.to_str() != tokenizer.tokenizer.backend_tokenizer.to_str():
        raise ValueError(
            f"model.pretrained is {folder}, whose vocabulary is another than that of this run or "
            f"comparison: all of its systems share one. Pretrain them in one comparison, and begin "
            f"each of them from it"
        )
    weights = MaskedLM.from_pretrained(model_folder(folder)).encoder.state_dict()
    own = encoder.state_dict()
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        raise ValueError(
            f"model.pretrained is {folder}, whose encoder has other sizes or another attention "
            f"than this model: leave model.embed_dim, ffn_dim, layers and attention out, and do "
            f"without --match"
        )
    encoder.load_state_dict(weights)
