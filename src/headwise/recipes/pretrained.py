"""Runs that a recipe starts from: `model.pretrained` names the folder of a finished one.

Sizes, plan of attention and encoding (vocabulary or palette) are those of that run. A recipe need
not repeat them, and where it does they must agree. Only the plan may differ, where that run has
standard attention. Of a run whose folder is gone nothing is taken: its weights may not be needed
any more, as by a run that has finished.
"""

import glob
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedConfig

from headwise.models.config import TransformerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.models.plan import layer_specs
from headwise.yaml import read_yaml

SEED, SYSTEM = "{seed}", "{system}"  # what stands in `model.pretrained` for them
# The first two are those of `runs.folder`, which recipes do not import.
_MODEL, _RECIPE, _CONFIG = "model", "recipe.yaml", "config.json"
_STANDARD = "standard"

_Model = TypeVar("_Model", bound=HeadwiseModel)


def model_folder(run: Path) -> Path:
    """Returns the folder of a model, given the folder of its run or of the model itself."""
    run = run.expanduser()
    return run if (run / _CONFIG).is_file() else run / _MODEL


def any_run(pattern: Path) -> Path:
    """Returns the first run that a `model.pretrained` with {seed} may name, or else the path."""
    text = str(pattern.expanduser())
    found = sorted(glob.glob(glob.escape(text).replace(SEED, "*")))  # noqa: PTH207 - absolute too
    return Path(found[0] if found else text)


def pretrained_config(run: Path, expected: type[TransformerConfig]) -> TransformerConfig | None:
    """Returns the configuration of the model of a run; None if there is no model.

    Raises:
        ValueError: the model is of another kind.
    """
    path = model_folder(run) / _CONFIG
    if not path.is_file():
        return None
    values, _ = PreTrainedConfig.get_config_dict(path.parent)
    if values.get("model_type") != expected.model_type:
        raise ValueError(
            f"model.pretrained is {run}, a model of type {values.get('model_type')!r}, expected "
            f"type {expected.model_type!r}: name a run whose task has such a model"
        )
    config = expected.from_dict(values)
    assert isinstance(config, TransformerConfig)
    return config


# --- what a recipe takes of it ----------------------------------------------------------------


def with_sizes(
    given: Mapping[str, Any], keys: set[str], expected: type[TransformerConfig]
) -> dict[str, Any]:
    """Settings of a model with those of the run that it starts from.

    Raises:
        ValueError: a setting that is given contradicts the run; the message names the key.
    """
    run = any_run(Path(given["pretrained"]))
    config = pretrained_config(run, expected)
    if config is None:
        return dict(given)
    taken = dict(given)
    for key in sorted(keys & {field.name for field in fields(expected)}):
        there = getattr(config, key)
        if key == "attention":
            _check_plan(taken.setdefault(key, there), config, run)
        elif (own := taken.get(key)) is None or _is_part(own, there):
            taken[key] = there
        elif own != there:
            raise ValueError(_conflict(f"model.{key}", key, own, there, run))
    return taken


def _is_part(given: Any, there: Any) -> bool:
    """Whether a mapping, such as `rope_parameters`, is one that the configuration completed."""
    both = isinstance(given, Mapping) and isinstance(there, Mapping)
    return both and given.items() <= there.items()


def with_encoding(given: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """A recipe with the encoding of the run that its model starts from.

    Raises:
        ValueError: a key of these parts contradicts the run, or the run's recipe is damaged.
    """
    taken = dict(given)
    run = any_run(Path(given["model"]["pretrained"]))
    path = model_folder(run).parent / _RECIPE
    there = _read_recipe(path) if path.is_file() else {}
    for part in keys:
        of_run = there.get(part)
        own = taken.get(part) or {}
        if not isinstance(of_run, Mapping) or not isinstance(own, Mapping):
            continue
        for key, value in own.items():
            if key in of_run and value != of_run[key]:
                name = f"{part}.{key}"
                raise ValueError(_conflict(part, name, value, of_run[key], run))
        taken[part] = {**of_run, **own}
    return taken


def _read_recipe(path: Path) -> Mapping[str, Any]:
    try:
        values = read_yaml(path.read_text(encoding="utf-8"))
        if isinstance(values, Mapping):
            return values
        problem: object = "it has no keys"
    except ValueError as error:
        problem = error
    raise ValueError(
        f"{path}, the recipe of the run that model.pretrained names, cannot be read ({problem}): "
        f"copy the run again"
    )


def _check_plan(given: Any, config: TransformerConfig, run: Path) -> None:
    """Raises `ValueError` unless a plan differs from a model's in its standard attentions alone."""
    for site, specs in layer_specs(given, config.depths()).items():
        for own, there in zip(specs, config.systems()[site], strict=True):
            if own != there and there["system"] != _STANDARD:
                conflict = _conflict("model.attention", "attention", given, config.attention, run)
                raise ValueError(f"{conflict}; only standard attention can become another system")


def _conflict(leave_out: str, key: str, given: Any, there: Any, run: Path) -> str:
    return (
        f"{key} is {given!r}, expected {there!r}: the model in {run} has that; leave {leave_out} "
        f"out"
    )


# --- its weights ------------------------------------------------------------------------------


def finished_run(folder: Path, saved: Sequence[str]) -> Path:
    """Returns the folder of a run that a model can start from.

    Raises:
        ValueError: there is no model, or what belongs to it is missing.
    """
    model = model_folder(folder)
    missing = [name for name in saved if not (model.parent / name).exists()]
    if not (model / _CONFIG).is_file() or missing:
        lacking = f" and {missing[0]}" if missing else ""
        raise ValueError(
            f"model.pretrained is {folder}, expected a folder with a model{lacking}: name the "
            f"folder of a run that `headwise train` or `headwise compare` has finished"
        )
    return model.parent


def read_pretrained(kind: type[_Model], run: Path, config: TransformerConfig) -> _Model:
    """Returns the model of a run, with other systems in place of its standard attentions.

    Raises:
        ValueError: there is no model, it is of another kind, or its output would change.
    """
    finished_run(run, ())
    there = pretrained_config(run, kind.config_class)
    assert there is not None
    model = kind.from_pretrained(model_folder(run))
    if there.systems() == config.systems():
        return model
    try:
        return model.with_attention(config.attention)
    except ValueError as error:
        raise ValueError(f"model.pretrained is {run}: {error}") from error


def take_weights(module: nn.Module, pretrained: nn.Module, run: Path) -> None:
    """Loads the weights of a module into another of the same sizes.

    Raises:
        ValueError: the sizes differ.
    """
    weights, own = pretrained.state_dict(), module.state_dict()
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in weights.items()}:
        raise ValueError(
            f"model.pretrained is {run}, expected a model with the sizes of this one: leave out "
            f"the sizes under `model`, and --match"
        )
    module.load_state_dict(weights)


def digest_weights(run: Path) -> str:
    """Returns a hash of the weights of a run's model.

    Raises:
        ValueError: there is no model.
    """
    finished_run(run, ())
    whole = hashlib.sha256()
    for path in sorted(model_folder(run).glob("*.safetensors")):
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
