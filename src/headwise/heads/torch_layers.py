"""What lets a system stand in PyTorch's own transformer layers, and where it may not stand."""

from typing import Any, ClassVar

import torch
from torch import nn

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


def check_place(parent: nn.Module, name: str, system: Any) -> None:
    """Raises `ValueError` where a system would compute something else than its place is for.

    Neither could be told from a call: a batch of sequences looks like a sequence of batches, and
    the feed-forward of PyTorch's layer comes after the call.

    Args:
        parent: the module that the system becomes a child of.
        name: of the child; the module that has been there until now is still there.
        system: the `headwise.heads.system.System`.
    """
    kind = type(system).__name__
    # Not by getattr: the wrappers of peft are not whole yet when they get their first child.
    before = dict(parent.named_children()).get(name)
    if isinstance(before, nn.MultiheadAttention) and not before.batch_first:
        raise ValueError(
            f"{name} of a {type(parent).__name__} is an nn.MultiheadAttention with "
            f"batch_first=False, whose place {kind} was to take; expected batch_first=True: it "
            f"would attend over the batch. Build the module with batch_first=True, and load the "
            f"state dict of the old one; or, if it is called with (batch, time, embed_dim) all the "
            f"same, delete {name} before you set it"
        )
    # A subclass may have taken the feed-forward out.
    has_feed_forward = isinstance(parent, _LAYERS) and any(
        type(parent).forward is layer.forward
        and getattr(type(parent), "_ff_block", None) is getattr(layer, "_ff_block", None)
        for layer in _LAYERS
    )
    if has_feed_forward and system.replaces != "attention":
        part = {"feed-forward": "the feed-forward behind it", "layer": "the rest of the layer"}
        raise ValueError(
            f"{name} of a {type(parent).__name__} was to be {kind}, expected an attention alone: "
            f"it takes the place of {part[system.replaces]} too, which PyTorch's layer has besides;"
            f" put it into a layer of your own"
        )
