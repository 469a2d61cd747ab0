"""A system over the heads of one attention: what hooks do in a pass of a transformers model."""

import inspect
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.heads.attention import MultiHeadAttention
from headwise.heads.system import System, auxiliary_loss, is_repeated
from headwise.ops.labels import IGNORED_LABEL
from headwise.pretrained.places import Place

NAME = "head_gates"  # of the child of an attention module
_HANDLES = "_headwise_handles"  # of hooks, an attribute of the modules that have them
_OWN = "have gates look at their own position alone (gate_window=1 of MAE's)"
_WAYS_OUT = (
    f"pass use_cache=False, {_OWN}, or convert the model: "
    f"headwise.from_transformers(model).with_attention('mae')"
)


def _keep(module: nn.Module, *handles: RemovableHandle) -> None:
    vars(module).setdefault(_HANDLES, []).extend(handles)


def unhook(module: nn.Module) -> None:
    """Takes the hooks that were put on by this file off a module."""
    for handle in vars(module).pop(_HANDLES, ()):
        handle.remove()


class Stack:
    """What the gates of a stack of layers, such as a decoder, know of a forward pass of it."""

    def __init__(self, module: nn.Module) -> None:
        self.names = list(inspect.signature(type(module).forward).parameters)[1:]
        self.looks_around = 0  # how many gates see more than their own position
        self.mask: Any = None  # the `attention_mask` of the pass
        # Whether gradients of a pass may be due, have been computed, and whose mask is gone.
        self.is_due = self.is_repeated = self.is_gone = False
        _keep(module, module.register_forward_pre_hook(self.start, with_kwargs=True))

    def start(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the stack: keeps its mask, and refuses what gates that look around cannot do."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        mask, before = given.get("attention_mask"), self.mask
        self.is_due, self.is_repeated = self.is_due and not self.is_repeated, False
        self.is_gone = self.is_due and (self.is_gone or mask is not before)
        self.is_due = self.is_due or (module.training and torch.is_grad_enabled())
        self.mask = mask
        caches = [each for each in given.values() if hasattr(each, "get_seq_length")]
        if self.looks_around and caches and caches[0].get_seq_length():
            raise ValueError(
                f"the model computes with a cache of earlier positions, whose hidden states are "
                f"unknown to the gates over its heads, which average over them: {_WAYS_OUT}"
            )
        if self.looks_around and self._is_packed(given.get("position_ids")):
            raise ValueError(
                f"several texts are packed into a row (position_ids begin again), and the gates "
                f"over the heads average over rows: give each a row, or {_OWN}"
            )

    def _is_packed(self, positions: Tensor | None) -> bool:
        if positions is None:
            return False
        if positions.dim() == 3:  # of time, height and width
            positions = positions[0]
        restarts = positions.diff(dim=-1) < 0
        if isinstance(self.mask, Tensor) and self.mask.shape == positions.shape:
            restarts = restarts & (self.mask[:, 1:] != 0) & (self.mask[:, :-1] != 0)
        return bool(restarts.any())

    def padding(self, batch: int, queries: int) -> Tensor | None:
        """`(batch, queries)`, `True` at padding, by the mask of the pass; None if it has none."""
        mask = self.mask
        self.is_repeated = self.is_repeated or is_repeated()
        if self.is_repeated and self.is_gone:
            raise RuntimeError(
                "passes with different masks wait for gradients at once: with gradient "
                "checkpointing call backward() after each pass"
            )
        if mask is None:
            return None
        is_tensor = isinstance(mask, Tensor)
        earlier = mask.size(1) - queries if is_tensor and mask.dim() == 2 else -1
        if earlier == 0 or (earlier > 0 and not self.looks_around):
            return (mask[:, earlier:] == 0).expand(batch, -1)
        if self.looks_around:
            raise ValueError(
                f"attention_mask is {tuple(mask.shape) if is_tensor else type(mask).__name__}, "
                f"expected (batch, {queries}), with 0 at padding, since gates that average over "
                f"positions see what else it hides: leave it out if that is nothing, or {_WAYS_OUT}"
            )
        return None


class HeadGates(nn.Module):
    """A system between what the heads of an attention have read and its output projection."""

    def __init__(
        self, system: MultiHeadAttention, options: dict[str, Any], place: Place, stack: Stack
    ) -> None:
        super().__init__()
        self.system, self.options, self.stack = system, options, stack
        self.path, self.projection = place.path, place.projection_path
        self.is_causal = place.site != "encoder_self"
        self.looks_around = system.sees_other_positions(self.is_causal)
        self.first = [*inspect.signature(type(place.module).forward).parameters][1]
        self.hidden: Tensor | None = None
        before = place.module.register_forward_pre_hook(self.note, with_kwargs=True)
        after = place.module.register_forward_hook(self.check_used)
        _keep(place.module, before, after)
        self.hooked: list[nn.Module] = []  # the projection, in a list: it is no child
        self._hook(place.module)
        stack.looks_around += self.looks_around

    def note(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the attention: keeps the hidden states that it is called with."""
        if attention._modules.get(NAME) is not self:
            raise RuntimeError(
                f"another module has taken the place of the gates at {self.path!r}: give peft "
                f"modules_to_save=['{NAME}.system']; start a process for each device in place of "
                f"nn.DataParallel"
            )
        self._hook(attention)
        self.hidden = args[0] if args else kwargs[self.first]

    def change(self, projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before the projection: what the heads have read becomes what the system makes of it."""
        heads, hidden, self.hidden = args[0], self.hidden, None
        if hidden is None or heads.shape[:2] != hidden.shape[:2]:
            self._refuse(f"with {tuple(heads.shape)}")
        parameter = next(self.system.parameters(), heads)
        made = self.system(
            hidden.to(parameter.device, parameter.dtype),
            value=heads,
            is_causal=self.is_causal,
            query_padding_mask=self.stack.padding(*hidden.shape[:2]),
        )
        return made.output.to(heads.dtype), *args[1:]

    def check_used(self, attention: nn.Module, args: object, output: object) -> None:
        """After the attention: its projection must have been called."""
        if self.hidden is not None:
            self.hidden = None
            self._refuse("never")

    def _refuse(self, how: str) -> NoReturn:
        raise RuntimeError(
            f"the attention at {self.path!r} calls its output projection, {self.projection!r}, "
            f"{how}, expected once, with (batch, queries, heads * head_dim): no gates can be there"
        )

    def _hook(self, attention: nn.Module) -> None:
        """Hooks the projection; also what has taken its place since, such as LoRA's module."""
        projection = attention.get_submodule(self.projection)
        if self.hooked != [projection]:
            for former in self.hooked:
                unhook(former)
            _keep(projection, projection.register_forward_pre_hook(self.change))
            self.hooked = [projection]


def hook_losses(model: nn.Module) -> None:
    """Has a model of transformers add the losses of its systems to its own, in training."""
    before = model.register_forward_pre_hook(_forget_losses)
    _keep(model, before, model.register_forward_hook(_add_losses, with_kwargs=True))


def _systems(model: nn.Module) -> list[System]:
    return [module for module in model.modules() if isinstance(module, System)]


def _forget_losses(model: nn.Module, args: object) -> None:
    """Before a model: systems that are not called in this pass add nothing to its loss."""
    for system in _systems(model):
        system.routing_loss = None


def _add_losses(model: nn.Module, args: object, kwargs: dict[str, Any], output: Any) -> Any:
    """After a model in training: adds the losses of its systems to that of its output.

    Where batches are summed up before a step, `num_items_in_batch` is how many labels they have
    together, and the losses count as much as this batch's share of these.
    """
    adding = [system for system in _systems(model) if system.routing_loss is not None]
    loss = getattr(output, "loss", None)
    if loss is None or not model.training or not adding:
        return output
    added = auxiliary_loss(model)
    learns = any(p.requires_grad for system in adding for p in system.parameters())
    if learns and torch.is_grad_enabled() and not added.requires_grad:
        raise RuntimeError(
            "reentrant gradient checkpointing takes the gradient of the gates' losses away: give "
            "gradient_checkpointing_enable() or TrainingArguments the option use_reentrant=False"
        )
    labels, items = kwargs.get("labels"), kwargs.get("num_items_in_batch")
    if items is not None and labels is not None:
        shifted = getattr(model, "loss_type", None) == "ForCausalLM"  # so the Trainer counts
        predicted = labels[..., 1:] if shifted else labels
        added = added * (predicted != IGNORED_LABEL).sum() / items
    loss = loss + added.to(loss.device)
    output["loss"] = loss
    return output
