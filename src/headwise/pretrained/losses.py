"""Adds the losses of systems over heads to the loss that a pretrained model returns."""

from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.auxiliary_loss import mark_as_added
from headwise.models.outputs import share_of_step
from headwise.transformers_internals import shifts_labels


class AuxiliaryLosses:
    """Collects the systems' losses of a pass in training, and adds them to `output.loss`.

    If the model divides its own loss by `num_items_in_batch`, which counts the labels of further
    batches too, they are multiplied by this batch's share of them: over the batches they are a
    mean, as that loss is. Many models of transformers are given it and leave it out.
    """

    def __init__(self, model: nn.Module) -> None:
        self.users = 0  # how many gates add to them
        self.collected: list[Tensor] | None = None  # None while no pass is under way
        self.lacks_gradient = False
        self.items: Tensor | None = None
        self.handles = [
            model.register_forward_pre_hook(self.begin, with_kwargs=True),
            model.register_forward_hook(self.end, with_kwargs=True, always_call=True),
        ]

    def begin(self, model: nn.Module, args: object, kwargs: dict[str, Any]) -> Any:
        self.collected = [] if model.training else None
        self.items = None
        self.lacks_gradient = False
        items = kwargs.get("num_items_in_batch")
        if items is None or not model.training or torch.compiler.is_compiling():
            return None
        # What requires a gradient shows whether the loss has been computed from it.
        self.items = torch.as_tensor(items, dtype=torch.float32).clone().requires_grad_()
        return args, {**kwargs, "num_items_in_batch": self.items}

    def add(self, loss: Tensor, learns: bool) -> None:
        """Notes a system's loss; `learns` says whether it has a parameter that requires a gradient.

        Where the pass of the model is over, gradient checkpointing computes a layer again.
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
        labels = kwargs.get("labels")
        as_tuple = isinstance(output, tuple) and labels is not None
        loss = output[0] if as_tuple else getattr(output, "loss", None)
        if loss is None:
            return output
        total = torch.stack([loss.to(collected[0].device) for loss in collected]).sum()
        if labels is not None:
            shifted = shifts_labels(model)
            total = total * share_of_step(labels, self._divisor(loss, kwargs), shifted=shifted)
        loss = loss + total.to(loss.device)
        mark_as_added(collected)
        if as_tuple:
            return (loss, *output[1:])
        output["loss"] = loss
        return output

    def _divisor(self, loss: Tensor, kwargs: dict[str, Any]) -> Any:
        """`num_items_in_batch`, if the model has divided its loss by it."""
        items, self.items = self.items, None
        if items is None or not loss.requires_grad:
            return kwargs.get("num_items_in_batch")
        (used,) = torch.autograd.grad(loss.sum(), items, retain_graph=True, allow_unused=True)
        return None if used is None else items.detach()

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "collected": None, "items": None}
