"""A system over the heads of one attention: its hooks in a forward pass of a transformers model."""

import inspect
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.heads.attention import MultiHeadAttention
from headwise.heads.system import System, auxiliary_loss, is_repeated
from headwise.ops import IGNORED_LABEL
from headwise.pretrained.layouts import AttentionModule

CHILD = "head_gates"  # the name of the child of an attention module
_HANDLES = "_headwise_handles"  # the attribute of a module with the handles of its hooks
_WINDOW_ADVICE = "use gates that read their own position alone (gate_window=1 of MAE's)"
_ADVICE = (
    f"pass use_cache=False, {_WINDOW_ADVICE}, or convert the model: "
    f"headwise.from_transformers(model).with_attention('mae')"
)


def _keep_handles(module: nn.Module, *handles: RemovableHandle) -> None:
    vars(module).setdefault(_HANDLES, []).extend(handles)


def unhook(module: nn.Module) -> None:
    """Removes the hooks of this file from a module."""
    for handle in vars(module).pop(_HANDLES, ()):
        handle.remove()


class ForwardContext:
    """The arguments of a forward pass of a decoder or an encoder, for the gates in its layers."""

    def __init__(self, stack: nn.Module) -> None:
        self.names = list(inspect.signature(type(stack).forward).parameters)[1:]
        self.averaging_gates = 0  # the number of gates that read other positions than their own
        self.mask: Any = None  # the `attention_mask` of the pass
        self.cached = 0  # the number of earlier positions in the cache of the pass
        # Gradient checkpointing repeats layers in the backward pass, by the mask of the last
        # forward pass. So these flags tell whether a pass may still wait for its backward pass,
        # whether that has begun, and whether a pass with another mask has waited meanwhile.
        self.is_waiting = self.is_repeating = self.has_other_mask = False
        _keep_handles(stack, stack.register_forward_pre_hook(self.start, with_kwargs=True))

    def start(self, stack: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps the mask of a pass; refuses passes that averaging gates would compute wrongly."""
        arguments = dict(zip(self.names, args, strict=False)) | kwargs
        mask = arguments.get("attention_mask")
        waits, self.is_repeating = self.is_waiting and not self.is_repeating, False
        self.has_other_mask = waits and (self.has_other_mask or mask is not self.mask)
        self.is_waiting = waits or (stack.training and torch.is_grad_enabled())
        self.mask = mask
        caches = [each for each in arguments.values() if hasattr(each, "get_seq_length")]
        self.cached = int(caches[0].get_seq_length()) if caches else 0
        if not self.averaging_gates:
            return
        if self.cached:
            raise ValueError(
                f"the model computes with a cache of earlier positions, whose hidden states are "
                f"unknown to the gates over its heads, which average over them: {_ADVICE}"
            )
        if self._is_packed(arguments.get("position_ids")):
            raise ValueError(
                f"several texts are packed into a row (position_ids begin again), and the gates "
                f"over the heads average over rows: give each a row, or {_WINDOW_ADVICE}"
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
        self.is_repeating = self.is_repeating or is_repeated()
        if self.is_repeating and self.has_other_mask:
            raise RuntimeError(
                "passes with different masks wait for gradients at once: with gradient "
                "checkpointing call backward() after each pass"
            )
        if mask is None:
            return None
        is_tensor = isinstance(mask, Tensor)
        # Some masks are of other positions: those of speech models are of samples.
        if is_tensor and mask.dim() == 2 and mask.size(1) == self.cached + queries:
            return (mask[:, self.cached :] == 0).expand(batch, -1)
        if self.averaging_gates:
            raise ValueError(
                f"attention_mask is {tuple(mask.shape) if is_tensor else type(mask).__name__}, "
                f"expected (batch, {queries}), with 0 at padding, since gates that average over "
                f"positions see what else it hides: leave it out if that is nothing, or {_ADVICE}"
            )
        return None


@dataclass
class Users:
    """The open contexts that share gates, which are over the heads of this model meanwhile."""

    model: nn.Module
    count: int = 0


class HeadGates(nn.Module):
    """A system between the heads of an attention and its output projection."""

    def __init__(
        self,
        system: MultiHeadAttention,
        options: dict[str, Any],
        attention: AttentionModule,
        context: ForwardContext,
    ) -> None:
        super().__init__()
        self.system, self.options, self.context = system, options, context
        self.path, self.output_projection = attention.path, attention.projection_path
        self.is_causal = attention.site != "encoder_self"
        self.averages = system.sees_other_positions(self.is_causal)
        module = attention.module
        self.hidden_name = [*inspect.signature(type(module).forward).parameters][1]
        self.hidden: Tensor | None = None
        self.users: Users | None = None  # of gates that no context shares
        before = module.register_forward_pre_hook(self.before_attention, with_kwargs=True)
        _keep_handles(module, before, module.register_forward_hook(self.after_attention))
        self.hooked: list[nn.Module] = []  # in a list, a projection is no child of this module
        self._hook_projection(module)
        context.averaging_gates += self.averages

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "users": None}  # a copy is in no context, and holds no other model

    def before_attention(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keeps the hidden states that the attention is called with; refuses to leak later ones."""
        if attention._modules.get(CHILD) is not self:
            raise RuntimeError(
                f"another module has taken the place of the gates at {self.path!r}: give peft "
                f"modules_to_save=['{CHILD}.system']; start a process for each device in "
                f"place of nn.DataParallel"
            )
        if self.averages and not self.is_causal and kwargs.get("is_causal"):
            name = type(attention).__name__
            raise ValueError(
                f"the attention at {self.path!r} is called with is_causal=True, expected False, "
                f"since its gates average over later positions too: gate this part of the model "
                f"by itself, with layouts={{{name!r}: headwise.HeadLayout(is_causal=True)}}"
            )
        self._hook_projection(attention)
        self.hidden = args[0] if args else kwargs[self.hidden_name]

    def before_projection(
        self, projection: nn.Module, args: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Replaces the outputs of the heads by the output of the system."""
        heads, hidden, self.hidden = args[0], self.hidden, None
        if hidden is None or heads.shape[:2] != hidden.shape[:2]:
            self._refuse(f"with {tuple(heads.shape)}")
        parameter = next(self.system.parameters(), heads)
        out = self.system(
            hidden.to(parameter.device, parameter.dtype),
            value=heads,
            is_causal=self.is_causal,
            query_padding_mask=self.context.padding(*hidden.shape[:2]),
        )
        return out.output.to(heads.dtype), *args[1:]

    def after_attention(self, attention: nn.Module, args: object, output: object) -> None:
        """Checks that the attention has called its projection."""
        if self.hidden is not None:
            self.hidden = None
            self._refuse("never")

    def _refuse(self, called: str) -> NoReturn:
        raise RuntimeError(
            f"the attention at {self.path!r} calls its output projection, "
            f"{self.output_projection!r}, {called}, expected once, with (batch, queries, heads * "
            f"head_dim): no gates can be there"
        )

    def _hook_projection(self, attention: nn.Module) -> None:
        """Hooks the projection, or the module that has replaced it since, such as LoRA's."""
        projection = attention.get_submodule(self.output_projection)
        if self.hooked != [projection]:
            for former in self.hooked:
                unhook(former)
            _keep_handles(projection, projection.register_forward_pre_hook(self.before_projection))
            self.hooked = [projection]


def hook_losses(model: nn.Module) -> None:
    """Lets a model of transformers add the losses of its systems to its own loss in training."""
    reset = model.register_forward_pre_hook(_reset_losses)
    _keep_handles(model, reset, model.register_forward_hook(_add_losses, with_kwargs=True))


def _systems(model: nn.Module) -> list[System]:
    return [module for module in model.modules() if isinstance(module, System)]


def _reset_losses(model: nn.Module, args: object) -> None:
    """Forgets the losses of the last pass, as this pass may not call all systems."""
    for system in _systems(model):
        system.routing_loss = None


def _add_losses(model: nn.Module, args: object, kwargs: dict[str, Any], output: Any) -> Any:
    """Adds the losses of the systems to the loss of the output, in training.

    Where the gradients of several batches are summed for a step, `num_items_in_batch` is the number
    of labels of all of them, and the losses count by this batch's share of it.
    """
    with_losses = [system for system in _systems(model) if system.routing_loss is not None]
    # With `return_dict=False` the loss is the first, and the only one without positions.
    first = output[0] if isinstance(output, tuple) and output else None
    comes_first = isinstance(first, Tensor) and first.dim() == 0
    loss = first if comes_first else getattr(output, "loss", None)
    if loss is None or not model.training or not with_losses:
        return output
    auxiliary = auxiliary_loss(model)
    learns = any(p.requires_grad for system in with_losses for p in system.parameters())
    if learns and torch.is_grad_enabled() and not auxiliary.requires_grad:
        raise RuntimeError(
            "reentrant gradient checkpointing takes the gradient of the gates' losses away: give "
            "activation_checkpointing_enable() or TrainingArguments the option use_reentrant=False"
        )
    labels, items = kwargs.get("labels"), kwargs.get("num_items_in_batch")
    if items is not None and labels is not None:
        shifted = getattr(model, "loss_type", None) == "ForCausalLM"  # as the Trainer counts them
        predicted = labels[..., 1:] if shifted else labels
        auxiliary = auxiliary * (predicted != IGNORED_LABEL).sum() / items
    loss = loss + auxiliary.to(loss.device)
    if comes_first:
        return loss, *output[1:]
    output["loss"] = loss
    return output
