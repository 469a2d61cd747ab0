"""Divides a model among the processes that train it, by torch's `fully_shard` (FSDP2).

Each process holds a part of every parameter, of its gradient and of what the optimizer keeps of it.
A layer is whole only while it computes. What is saved is whole, as any number of processes reads
it: it is collected one tensor after the other, in the main memory of the process that writes.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers.modeling_layers import GradientCheckpointingLayer

from headwise.ops.replicas import replicas, sharded_like, whole


def shard(model: nn.Module, device: torch.device) -> None:
    """Divides a model, which every process holds alike, among all of them on their devices.

    Its class is another one from then on, a subclass of the former. Whole weights can be loaded.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (replicas(),))
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    for part in (*reversed(layers), model):  # what is inside of others goes first
        # The model itself too: rules then find all parameters divided while nothing is computed.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    # It warns of what would be wrong if outputs of layers were changed in place: none is.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    model.register_load_state_dict_pre_hook(_divide_weights)


def _divide_weights(model: nn.Module, weights: dict[str, Any], *_: Any) -> None:
    for name, held in model.state_dict().items():
        if name in weights:
            weights[name] = sharded_like(held, weights[name])


def whole_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Returns the whole weights in main memory; all processes have to call this together.

    Those that do not `keep` them get none. Tied weights stay one tensor.
    """
    collected: dict[int, Tensor | None] = {}
    weights = model.state_dict(keep_vars=True)
    for held in weights.values():
        if id(held) not in collected:
            collected[id(held)] = _collected(held.detach(), keep)
    found = {name: collected[id(held)] for name, held in weights.items()}
    return {name: weight for name, weight in found.items() if weight is not None}


def whole_state(optimizer: Optimizer, *, keep: bool) -> dict[str, Any]:
    """Returns the whole state of an optimizer in main memory, as `whole_weights` does weights."""
    state = optimizer.state_dict()
    state["state"] = {
        number: {name: _collected(value, keep) for name, value in of_parameter.items()}
        for number, of_parameter in state["state"].items()
    }
    return state


def _collected(value: Any, keep: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = whole(value)
    return value.cpu() if keep else None


def part_of_state(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a whole state that the optimizer of this process holds."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parts = {
        number: {
            name: sharded_like(parameters[number], value)
            if isinstance(value, Tensor) and value.shape == parameters[number].shape
            else value
            for name, value in of_parameter.items()
        }
        for number, of_parameter in state["state"].items()
    }
    return {**state, "state": parts}
