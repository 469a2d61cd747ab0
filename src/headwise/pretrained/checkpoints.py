"""Writes the gates over a model's heads: by themselves, and with what `save_pretrained` writes."""

import json
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise import __version__
from headwise.files import write_bytes, write_text
from headwise.heads.attention import MultiHeadAttention
from headwise.models.plan import system_name
from headwise.pretrained.gates import NAME, HeadGates

TENSORS = "head_gates.safetensors"
DESCRIPTION = "head_gates.json"

# The key of a config that says which heads are left, if sizes of the config cannot say it.
HEADS_LEFT = "headwise_heads_left"


def gates_of(model: nn.Module) -> dict[str, HeadGates]:
    """What stands over the heads of a model, by the paths of its attention modules."""
    return {
        path.removesuffix(NAME).rstrip("."): module
        for path, module in model.named_modules()
        if isinstance(module, HeadGates)
    }


def required_gates(model: nn.Module) -> dict[str, HeadGates]:
    """`gates_of` a model that must have some."""
    gates = gates_of(model)
    if not gates:
        raise ValueError(
            f"model is a {type(model).__name__} without gates over its heads, expected one that "
            f"headwise.gate_heads has been called with"
        )
    return gates


def saved_by_transformers(model: nn.Module) -> list[Any]:
    """The models in a model that have transformers' `save_pretrained`."""
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def base_names(model: nn.Module, paths: Iterable[str]) -> dict[str, str]:
    """The paths of attention modules, as a base model without heads and wrappers has them."""
    root = ""
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            inner = f"{path}.{module.base_model_prefix}" if path else module.base_model_prefix
            root = inner if inner in dict(model.named_modules()) else path
            break
    return {path: path.removeprefix(f"{root}.") for path in paths}


def sizes_of(system: Any) -> dict[str, int]:
    """The sizes of the heads that a system stands over."""
    return {name: getattr(system, name) for name in ("embed_dim", "num_heads", "head_dim")}


def described(model: nn.Module) -> str:
    """What `load_gates` has to know beside the tensors, as JSON.

    Raises:
        ValueError: as `headwise.save_gates`.
    """
    gates = required_gates(model)
    names, sites = base_names(model, gates), {}
    first_path, first = next(iter(gates.items()))
    for path, each in gates.items():
        if not isinstance(each.system, MultiHeadAttention):
            raise ValueError(
                f"the system over the heads at {path!r} is a {type(each.system).__name__}, in "
                f"which another tool holds it, expected the system itself: save by that tool, "
                f"or have it put its changes in place first, as merge_and_unload() of peft does"
            )
        if (type(each.system), each.options) != (type(first.system), first.options):
            raise ValueError(
                f"the gates over the heads at {path!r} are of another system or have other options "
                f"than those at {first_path!r}, expected the same over all heads, since one "
                f"folder describes one system: save each part by itself, as by "
                f"headwise.save_gates(model.encoder, folder)"
            )
        where = {"site": each.site, "layer": each.layer, "layers": each.layers}
        sites[names[path]] = {**where, **sizes_of(each.system)}
    description = {
        "headwise_version": __version__,
        "model": type(model).__name__,
        "system": system_name(type(first.system)),
        "options": first.options,
        "attentions": sites,
    }
    try:
        return json.dumps(description, indent=2) + "\n"
    except TypeError as error:
        raise ValueError(
            f"options of the system are {first.options}, of which JSON cannot write all ({error}); "
            f"expected numbers, texts, lists and the like"
        ) from None


def write_gates(
    model: nn.Module, folder: Path, state_dict: Mapping[str, Tensor] | None = None
) -> None:
    """Writes the two files of `save_gates`; the tensors are those of a state dict of the model."""
    text, gates = described(model), gates_of(model)
    names, tensors = base_names(model, gates), {}
    for path, each in gates.items():
        own: Mapping[str, Tensor] = each.system.state_dict()
        for name, tensor in own.items():
            if state_dict is not None:  # where parameters are sharded, it alone has them whole
                tensor = state_dict[f"{path}.{NAME}.system.{name}".lstrip(".")]
            tensors[f"{names[path]}.{name}"] = tensor.detach().cpu().contiguous()
    write_bytes(folder / TENSORS, save(tensors))
    write_text(folder / DESCRIPTION, text)


def follow_saving(model: nn.Module) -> None:
    """Has `save_pretrained` write the gates too, and warn of what `from_pretrained` cannot read."""
    for each in saved_by_transformers(model):
        save_as_before(each)
        former = vars(each).get("save_pretrained")  # of another tool
        each.save_pretrained = partial(_save_all, each, former)


def save_as_before(model: Any) -> None:
    """Takes away what `follow_saving` has put before the `save_pretrained` of one model."""
    here = vars(model).get("save_pretrained")
    if isinstance(here, partial) and here.func is _save_all:
        del model.save_pretrained
        _, former = here.args
        if former is not None:
            model.save_pretrained = former


def _save_all(
    model: Any,
    former: Any,
    save_directory: str | Path,
    is_main_process: bool = True,
    state_dict: Mapping[str, Tensor] | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Stands before a changed model's own `save_pretrained`."""
    gates = gates_of(model)
    # A tool that holds the systems, such as peft, saves them by itself.
    writes = bool(gates) and all(isinstance(e.system, MultiHeadAttention) for e in gates.values())
    if writes:
        described(model)  # raises before anything is written
    name = type(model).__name__
    if gates:
        warnings.warn(
            f"save_pretrained writes the gates over the heads of {name} among its weights, and "
            f"from_pretrained passes over them: call headwise.load_gates(model, folder) after "
            f"from_pretrained(folder)",
            stacklevel=2,
        )
    if hasattr(model.config, HEADS_LEFT):
        warnings.warn(
            f"heads of {name} were removed in a way that its config cannot say, so from_pretrained "
            f"refuses what save_pretrained writes: load it by "
            f"headwise.load_pruned({name}, folder)",
            stacklevel=2,
        )
    saves = former or partial(type(model).save_pretrained, model)
    saved = saves(save_directory, is_main_process, state_dict, *args, **kwargs)
    if writes and is_main_process:
        write_gates(model, Path(save_directory), state_dict)
    return saved
