"""Weights that earlier versions of headwise saved, where transformers reads them.

`load_state_dict` asks the modules themselves, transformers does not: it takes a weight of another
shape for one of another model.
"""

from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.core_model_loading import set_param_for_module


def take_scalars(
    model: Any, found: Any, state_dict: dict[str, Tensor] | None, files: list[str] | None
) -> None:
    """Loads what were scalars and are vectors of one entry now.

    Args:
        model: the model that is being loaded.
        found: what transformers says of the loading; names that are loaded here are taken out.
        state_dict: the weights, if they are not in files.
        files: the files of the weights.
    """
    scalar, vector = torch.Size([]), torch.Size([1])
    shapes = {name: shapes for name, *shapes in found.mismatched_keys}
    names = {name for name, each in shapes.items() if each == [scalar, vector]}
    scalars = {name: state_dict[name] for name in names if state_dict and name in state_dict}
    in_files = files if names and files else []
    for file in in_files:
        with safe_open(file, framework="pt") as weights:
            scalars |= {name: weights.get_tensor(name) for name in names & set(weights.keys())}
    for name, value in scalars.items():
        entry = value.reshape(1).to(model.get_parameter(name).dtype)
        set_param_for_module(model, name, entry, found, None)
    found.mismatched_keys -= {each for each in found.mismatched_keys if each[0] in scalars}
