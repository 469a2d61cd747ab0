"""Encoders of trained masked language models, from which other tasks start."""

from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig

from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.tasks.text.tokenization import TOKENIZER, TextTokenizer


def model_folder(folder: Path) -> Path:
    """Returns the folder of a model, given the folder of its run or of the model itself."""
    folder = folder.expanduser()
    return folder if (folder / "config.json").is_file() else folder / "model"


def pretrained_config(folder: Path) -> MaskedLMConfig | None:
    """Returns the configuration of the model in a folder; None if there is no model.

    Args:
        folder: folder of a run or of its model.

    Raises:
        ValueError: the model is of another kind.
    """
    path = model_folder(folder) / "config.json"
    if not path.is_file():
        return None
    values, _ = PreTrainedConfig.get_config_dict(path.parent)
    if values.get("model_type") != MaskedLMConfig.model_type:
        raise ValueError(
            f"model.pretrained is {folder}, a model of type {values.get('model_type')!r}, expected "
            f"type {MaskedLMConfig.model_type!r}: name the run of a recipe of masked language "
            f"modelling"
        )
    return MaskedLMConfig.from_dict(values)


def pretrained_tokenizer(folder: Path) -> TextTokenizer:
    """Loads the tokenizer of a run, given the folder of the run or of its model.

    Raises:
        ValueError: there is no model, or no tokenizer.
    """
    model = model_folder(folder)
    if not (model / "config.json").is_file():
        raise ValueError(
            f"model.pretrained is {folder}, expected a folder with a model: name the folder of a "
            f"run of masked language modelling that `headwise train` or `headwise compare` has "
            f"finished"
        )
    return TextTokenizer.load(model.parent / TOKENIZER)


def load_encoder(encoder: nn.Module, folder: Path, tokenizer: TextTokenizer) -> None:
    """Loads the weights of a pretrained encoder into another encoder.

    Args:
        encoder: encoder with the same sizes and attention as the pretrained one.
        folder: folder of the pretrained run or of its model.
        tokenizer: tokenizer of the texts that the encoder will read; it must be equal to that of
            the pretrained run.

    Raises:
        ValueError: there is no model, or its vocabulary or sizes differ.
    """
    pretrained = pretrained_tokenizer(folder).tokenizer.backend_tokenizer
    if pretrained.to_str() != tokenizer.tokenizer.backend_tokenizer.to_str():
        raise ValueError(
            f"model.pretrained is {folder}, expected a model with the vocabulary of this run or "
            f"comparison: all systems of a comparison share one; pretrain them in one comparison, "
            f"and start each of them from its run there"
        )
    weights = MaskedLM.from_pretrained(model_folder(folder)).encoder.state_dict()
    own = encoder.state_dict()
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        raise ValueError(
            f"model.pretrained is {folder}, expected an encoder with the sizes and attention of "
            f"this model: leave out model.embed_dim, model.ffn_dim, model.layers, model.attention "
            f"and --match"
        )
    encoder.load_state_dict(weights)
