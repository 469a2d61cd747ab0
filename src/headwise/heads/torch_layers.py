"""What lets a system stand in PyTorch's own transformer layers, and where it may not stand."""

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class NoPackedWeights:
    """Stands where `nn.TransformerEncoder` looks for the packed weights of its own attention.

    In evaluation it would hand them, and the input as a nested tensor, to a fused kernel that
    computes standard attention. An object that overrides torch functions makes it take its
    ordinary path instead, which calls our `forward`. peft looks there for the device of a module.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    weight = bias = property(lambda self: self)

    def __torch_function__(self, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented


class InTorchLayers(nn.Module):
    """What PyTorch's layers read of their attention."""

    batch_first: ClassVar[bool] = True
    in_proj_bias: ClassVar[None] = None
    _qkv_same_embed_dim: ClassVar[bool] = False

    @property
    def in_proj_weight(self) -> NoPackedWeights:
        return NoPackedWeights(next((p.device for p in self.parameters()), None))


def check_place(parent: nn.Module, name: str, child: Any) -> None:
    """Raises `ValueError` where a system takes a place that is not one for it.

    No call could tell: a batch of sequences looks like a sequence of batches, and the feed-forward
    of PyTorch's layer comes after the call.
    """
    replaces = getattr(child, "replaces", "attention")
    if type(parent) in _LAYERS and replaces in ("feed-forward", "layer"):
        raise ValueError(
            f"{name} of a {type(parent).__name__} was to be {type(child).__name__}, expected an "
            f"attention alone: it takes the place of more ({replaces}), which PyTorch's layer has "
            f"besides; put it into a layer of your own"
        )
    if not isinstance(child, InTorchLayers):
        return
    # Not by getattr: the wrappers of peft are not whole yet when they get their first child.
    before = dict(parent.named_children()).get(name)
    if isinstance(before, nn.MultiheadAttention) and not before.batch_first:
        raise ValueError(
            f"{name} of a {type(parent).__name__} is an nn.MultiheadAttention with "
            f"batch_first=False, whose place {type(child).__name__} was to take; expected "
            f"batch_first=True: it would attend over the batch. Build the module with "
            f"batch_first=True, and load the state dict of the old one; or, if it is called with "
            f"(batch, time, embed_dim) all the same, delete {name} before you set it"
        )


# PyTorch calls it whenever a module becomes the child of another.
register_module_module_registration_hook(check_place)
