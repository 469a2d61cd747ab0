"""Adds the losses of systems over heads to the loss that a pretrained model returns."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from headwise.heads.noted_losses import mark_as_added


class AuxiliaryLosses:
    """Collects the systems' losses of a pass in training, and adds them to `output.loss`.

    Args:
        model: the model that is called.
    """

    def __init__(self, model: nn.Module) -> None:
        self.collected: list[Tensor] | None = None  # None while no pass is under way
        self.lacks_gradient = False
        self.handles = [
            model.register_forward_pre_hook(self.begin),
            model.register_forward_hook(self.end, with_kwargs=True, always_call=True),
        ]

    def begin(self, model: nn.Module, args: object) -> None:
        self.collected = [] if model.training else None
        self.lacks_gradient = False

    def add(self, loss: Tensor, learns: bool) -> None:
        """Notes a system's loss, unless the model's pass is over.

        Then gradient checkpointing computes a layer again, whose loss has been noted.

        Args:
            loss: the loss.
            learns: whether any parameter of the system requires a gradient.
        """
        if self.collected is None:
            return
        self.collected.append(loss)
        self.lacks_gradient |= learns and not loss.requires_grad

    def end(self, model: nn.Module, args: object, kwargs: dict[str, Any], output: Any) -> Any:
        collected, self.collected = self.collected, None
        if not collected:
            return output
        if self.lacks_gradient and torch.is_grad_enabled():
            raise RuntimeError(
                "the loss of the system over the heads has no gradient, since reentrant gradient "
                "checkpointing takes it away: give gradient_checkpointing_enable() or "
                "TrainingArguments the checkpointing option use_reentrant=False"
            )
        total = torch.stack([loss.to(collected[0].device) for loss in collected]).sum()
        if isinstance(output, ModelOutput):
            loss = output.get("loss")
            if loss is not None:
                output["loss"] = loss + total.to(loss.device)
                mark_as_added(collected)
        elif isinstance(output, tuple) and kwargs.get("labels") is not None:
            output = (output[0] + total.to(output[0].device), *output[1:])
            mark_as_added(collected)
        return output

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "collected": None}
