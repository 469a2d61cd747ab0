"""Models that start from a finished run, which `model.pretrained` names.

Sizes, plan of attention and encoder (vocabulary or palette) are those of that run. A recipe need
not repeat them, and where it does they must agree. Only the plan may differ, where that run has
standard attention; and what weights do not depend on, such as dropout.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedConfig

from headwise.models.config import TransformerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.models.plan import layer_specs
from headwise.ops.checks import did_you_mean
from headwise.recipes.recipe import Recipe

_Model = TypeVar("_Model", bound=HeadwiseModel)

# Arguments of configurations on which no weights depend.
_OF_TRAINING = {
    "dropout",
    "attention_dropout",
    "ffn_dropout",
    "adaptive_dropout",
    "label_smoothing",
}


def pretrained_config(model_class: type[HeadwiseModel], recipe: Recipe) -> TransformerConfig:
    """Returns the configuration of a model that starts from a run, with the recipe's plan.

    Raises:
        ValueError: there is no such model, or the recipe contradicts it.
    """
    config = _changed_config(model_class, recipe)
    plan = recipe.model_arguments.get("attention")
    if plan is None:
        return config
    there = config.systems()
    for site, specs in layer_specs(plan, config.depths()).items():
        for own, other in zip(specs, there[site], strict=True):
            if own != other and other["system"] != "standard":
                raise _conflict("attention", plan, config.attention, recipe)
    config.attention = plan
    config.check_systems()
    return config


def pretrained_model(model_class: type[_Model], recipe: Recipe) -> _Model:
    """Returns the model of a run, with the recipe's systems in place of standard attentions.

    Raises:
        ValueError: there is no such model, the recipe contradicts it, or its output would change.
    """
    planned = pretrained_config(model_class, recipe)
    config = _changed_config(model_class, recipe)
    model = model_class.from_pretrained(_folder(recipe), config=config)
    if planned.systems() == config.systems():
        return model
    try:
        return model.with_attention(planned.attention)
    except ValueError as error:
        raise ValueError(f"model.pretrained is {recipe.pretrained}: {error}") from error


def digest_weights(folder: Path) -> str:
    """Returns a hash of the weights in the folder of a model."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _folder(recipe: Recipe) -> Path:
    folder = recipe.pretrained_folder()
    if folder is None or not (folder / "config.json").is_file():
        raise ValueError(
            f"model.pretrained is {recipe.pretrained}, and there is no model in {folder}, expected "
            f"the folder of a run that `headwise train` or `headwise compare` has finished"
        )
    return folder


def _changed_config(model_class: type[HeadwiseModel], recipe: Recipe) -> TransformerConfig:
    """Returns the configuration of the run's model, trained as the recipe says."""
    kind: type[TransformerConfig] = model_class.config_class
    values, _ = PreTrainedConfig.get_config_dict(_folder(recipe))
    if values.get("model_type") != kind.model_type:
        raise ValueError(
            f"model.pretrained is {recipe.pretrained}, a model of type {values.get('model_type')!r}"
            f", expected {kind.model_type!r}: name a run whose task has such a model"
        )
    config: Any = kind.from_dict(values)
    known = [field.name for field in fields(kind)]
    for key, given in recipe.model_arguments.items():
        if key not in known:
            raise ValueError(f"there is no key model.{key}{did_you_mean(key, known)}")
        if key in _OF_TRAINING:
            setattr(config, key, given)
            continue
        there = getattr(config, key)
        # The configuration has completed mappings such as rope_parameters.
        is_part = isinstance(given, Mapping) and isinstance(there, Mapping)
        agrees = given.items() <= there.items() if is_part else given == there
        if not agrees and key != "attention":
            raise _conflict(key, given, there, recipe)
    return config


def _conflict(key: str, given: Any, there: Any, recipe: Recipe) -> ValueError:
    only = "; only standard attention can become another system" if key == "attention" else ""
    return ValueError(
        f"model.{key} is {given!r}, expected {there!r}, as the model in {recipe.pretrained} has "
        f"it: leave model.{key} out{only}"
    )
