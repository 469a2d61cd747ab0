"""Weights that earlier versions of headwise saved, where transformers reads them.

`load_state_dict` asks the modules themselves, transformers does not: it takes a weight of another
shape for one of another model.
"""

from typing import Any

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
    names = {name for name, given, expected in found.mismatched_keys if (*given, 1) == (*expected,)}
    scalars = {name: state_dict[name] for name in names if state_dict and name in state_dict}
    for file in files or [] if names - scalars.keys() else []:
        with safe_open(file, framework="pt") as weights:
            scalars |= {name: weights.get_tensor(name) for name in names & set(weights.keys())}
    for name, scalar in scalars.items():
        value = scalar.reshape(1).to(model.get_parameter(name).dtype)
        set_param_for_module(model, name, value, found, None)
    found.mismatched_keys -= {each for each in found.mismatched_keys if each[0] in scalars}
