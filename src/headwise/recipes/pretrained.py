"""Models that start from a finished run, the folder `model.pretrained`.

Sizes, attention and encoder (vocabulary or palette) are those of that run; a recipe that repeats
them must agree. A recipe may change settings without weights, such as dropout, and replace standard
attention by another system.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedConfig

from headwise.messages import did_you_mean
from headwise.models.config import TransformerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.models.plan import layer_specs
from headwise.recipes.recipe import Recipe

_Model = TypeVar("_Model", bound=HeadwiseModel)

# Arguments of configurations without weights.
_CHANGEABLE = {"dropout", "attention_dropout", "ffn_dropout", "adaptive_dropout", "label_smoothing"}


def pretrained_config(model_class: type[HeadwiseModel], recipe: Recipe) -> TransformerConfig:
    """Returns the configuration of a model that starts from a run, with the recipe's attention.

    Raises:
        ValueError: there is no such model, or the recipe contradicts it.
    """
    config_class: Any = model_class.config_class
    folder = _checked_folder(config_class, recipe)
    config = config_class.from_pretrained(folder, **_changed_arguments(recipe))
    known = [field.name for field in fields(config_class)]
    for key, given in recipe.model_arguments.items():
        if key not in known:
            raise ValueError(f"there is no key model.{key}{did_you_mean(key, known)}")
        saved = getattr(config, key)
        # A configuration adds defaults to mappings such as rope_parameters.
        are_mappings = isinstance(given, Mapping) and isinstance(saved, Mapping)
        agrees = given.items() <= saved.items() if are_mappings else given == saved
        if key == "attention":
            saved_specs = config.layer_specs()
            agrees = all(
                new == old or old["system"] == "standard"
                for site, specs in layer_specs(given, config.depths()).items()
                for new, old in zip(specs, saved_specs[site], strict=True)
            )
        if not agrees:
            raise ValueError(
                f"model.{key} is {given!r}, expected {saved!r}, as the model in "
                f"{recipe.pretrained} has it: leave it out"
                f"{'; only standard attention can change' if key == 'attention' else ''}"
            )
    config.attention = recipe.model_arguments.get("attention", config.attention)
    config.check_systems()
    return config


def pretrained_model(model_class: type[_Model], recipe: Recipe) -> _Model:
    """Returns the model of a run, with the recipe's systems in place of standard attention.

    Raises:
        ValueError: there is no such model, the recipe contradicts it, or its output would change.
    """
    config = pretrained_config(model_class, recipe)
    folder = _checked_folder(model_class.config_class, recipe)
    model = model_class.from_pretrained(folder, **_changed_arguments(recipe))
    is_same = config.layer_specs() == model.config.layer_specs()
    return model if is_same else model.with_attention(config.attention)


def digest_weights(folder: Path) -> str:
    """Returns a hash of the weights in the folder of a model."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _changed_arguments(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in recipe.model_arguments.items() if key in _CHANGEABLE}


def _checked_folder(config_class: Any, recipe: Recipe) -> Path:
    """Returns the folder of the pretrained model, after a check of its type."""
    folder = recipe.pretrained_folder()
    if folder is None or not (folder / "config.json").is_file():
        raise ValueError(
            f"model.pretrained is {recipe.pretrained}, and there is no model in {folder}, expected "
            f"the folder of a run that `headwise train` or `headwise compare` has finished"
        )
    model_type = PreTrainedConfig.get_config_dict(folder)[0].get("model_type")
    if model_type != config_class.model_type:
        raise ValueError(
            f"model.pretrained is {recipe.pretrained}, a model of type {model_type!r}, expected "
            f"{config_class.model_type!r}: name a run whose task has such a model"
        )
    return folder
