"""The losses that systems add, of any model that does not add them itself."""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.heads.system import System


def auxiliary_loss(model: nn.Module) -> Tensor:
    """Returns the sum of the losses that the systems in a model add, of its last forward pass.

    Systems whose paper adds a loss, such as MoA's and MoH's for balance, have it in
    `out.routing.loss`, its coefficients already in it. Models that use the output alone, such as
    PyTorch's layers, drop it; add this sum to the loss of such a model before `backward()`.

    What belongs to the last pass: all that systems have computed since this function was called
    last, a gradient went through it, or an optimizer stepped. A module that a pass calls twice
    counts twice, and two passes before one call of this function are summed. Where gradients are
    off, and in code that `torch.compile` has compiled, the last call of each system counts alone.
    Called again without another pass, it returns the same again.

    A loss has its graph as long as the output of its system has one. Afterwards its number stays.

    Args:
        model: any module, also in wrappers such as `DistributedDataParallel` or `torch.compile`. It
            is the module that is called: a deep copy has no losses before a pass of its own. Of
            systems within a system whose output has a loss, that loss counts and theirs do not.

    Returns:
        A scalar; 0 if no system adds a loss, or none has been called. Losses that are already in
        the loss which a model has returned, as headwise's models and gated ones do where they are
        given labels, are left out, with a warning: `out.auxiliary_loss` of headwise's models has
        their sum.

    Example:
        >>> import headwise as hw
        >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> layer.self_attn = hw.MixtureOfAttentionHeads(16, num_experts=4, top_k=2, head_dim=4)
        >>> y = layer(torch.randn(2, 5, 16))
        >>> loss = y.square().mean() + hw.auxiliary_loss(layer)
        >>> loss.backward()
    """
    systems = list(_speaking(model, set()))
    total = torch.zeros((), device=next((p.device for p in model.parameters()), None))
    if torch.compiler.is_compiling():
        losses = [system.losses.read_in_compiled() for system in systems]
        return sum((loss.to(total.device) for loss in losses if loss is not None), start=total)
    calls = [call for system in systems for call in system.losses.read()]
    of_this_pass = [call for call in calls if call.is_of_this_pass]
    found = of_this_pass or calls
    added = [call for call in found if not call.is_added]
    if len(added) < len(found):
        warnings.warn(
            "headwise.auxiliary_loss is called for a model that has added these losses to the loss "
            "it has returned: they are left out here, so as not to count twice; use that loss "
            "alone, and out.auxiliary_loss for the number",
            stacklevel=2,
        )
    return sum((call.value.to(total.device) for call in added), start=total)


def _speaking(module: nn.Module, seen: set[nn.Module]) -> Iterator[System]:
    """The systems that have noted a loss, but for those within another of them."""
    if module in seen:
        return
    seen.add(module)
    if isinstance(module, System) and module.losses.are_there:
        yield module
        return
    for child in module.children():
        yield from _speaking(child, seen)
