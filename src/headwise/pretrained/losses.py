"""Adds the losses of systems over heads to the loss that a pretrained model returns."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput


class AuxiliaryLosses:
    """Collects the systems' losses of a pass in training, and adds them to `output.loss`.

    Args:
        model: the model that is called.
    """

    def __init__(self, model: nn.Module) -> None:
        self.collected: list[Tensor] | None = None  # None while no pass is under way
        self.handles = [
            model.register_forward_pre_hook(self.begin),
            model.register_forward_hook(self.end, with_kwargs=True, always_call=True),
        ]

    def begin(self, model: nn.Module, args: object) -> None:
        self.collected = [] if model.training else None

    def add(self, loss: Tensor | None) -> None:
        """Notes a system's loss; computed again for its gradients, a layer's is there already."""
        if loss is not None and self.collected is not None:
            self.collected.append(loss)

    def end(self, model: nn.Module, args: object, kwargs: dict[str, Any], output: Any) -> Any:
        collected, self.collected = self.collected, None
        if not collected:
            return output
        total = torch.stack([loss.to(collected[0].device) for loss in collected]).sum()
        if isinstance(output, ModelOutput):
            loss = output.get("loss")
            if loss is not None:
                output["loss"] = loss + total.to(loss.device)
        elif isinstance(output, tuple) and kwargs.get("labels") is not None:
            output = (output[0] + total.to(output[0].device), *output[1:])
        return output

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "collected": None}
