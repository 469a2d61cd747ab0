"""Starting from the weights of a finished run, whatever the task."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from torch import nn

from headwise.checksums import find_damage, how_to_accept_changes
from headwise.models.base import HeadwiseModel
from headwise.models.config import TransformerConfig
from headwise.recipes.pretrained import model_folder, pretrained_config

_Model = TypeVar("_Model", bound=HeadwiseModel)


def finished_run(folder: Path, saved: Sequence[str]) -> Path:
    """Returns the folder of a run that a model can start from.

    Raises:
        ValueError: there is no model, or what belongs to it is missing.
    """
    model = model_folder(folder)
    missing = [name for name in saved if not (model.parent / name).exists()]
    if not (model / "config.json").is_file() or missing:
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
    if damage := find_damage(model_folder(run)):
        raise ValueError(
            f"model.pretrained is {run}, whose model is damaged ({damage}): train that run again "
            f"from its checkpoints, or copy its model again; "
            f"{how_to_accept_changes(model_folder(run))}"
        )
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
    digest = hashlib.sha256()
    for path in sorted(model_folder(run).glob("*.safetensors")):
        with path.open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
    return digest.hexdigest()
