"""A system over the heads of one attention: what hooks do in a pass of a transformers model."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.heads.attention import MultiHeadAttention, hides
from headwise.heads.system import System, auxiliary_loss, is_repeated
from headwise.ops.labels import IGNORED_LABEL
from headwise.pretrained.places import Place

NAME = "head_gates"  # of the child of an attention module
_WAYS_OUT = (
    "pass use_cache=False, have gates look at their own position alone (gate_window=1 of MAE's), "
    "or convert the model: headwise.from_transformers(model).with_attention('mae')"
)


class Stack:
    """What the gates of a stack of layers, such as a decoder, know of a forward pass of it.

    Attributes:
        looks_around: whether any gate sees more than its own position.
        counts: whether `begin` is asked for, although none does.
        begin: how many positions a cache held before the pass.
        mask: the `attention_mask` that the stack was called with, or None.
    """

    def __init__(self, module: nn.Module) -> None:
        self.names = list(inspect.signature(type(module).forward).parameters)[1:]
        self.looks_around = self.counts = False
        self.begin, self.mask, self.users = 0, None, 0
        # Whether gradients of a pass may be due, have been computed, and whose mask is gone.
        self.is_due = self.is_repeated = self.is_gone = False
        self.handle = module.register_forward_pre_hook(self.start, with_kwargs=True)

    def start(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the stack: keeps its mask, and refuses what gates that look around cannot do."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        mask, before = given.get("attention_mask"), self.mask
        self.is_due, self.is_repeated = self.is_due and not self.is_repeated, False
        self.is_gone = self.is_due and (self.is_gone or mask is not before)
        learns = module.training and torch.is_grad_enabled()
        self.is_due, self.mask = self.is_due or learns, mask
        if self.looks_around or self.counts:
            caches = [each for each in given.values() if hasattr(each, "get_seq_length")]
            self.begin = int(caches[0].get_seq_length()) if caches else 0
        if self.looks_around and self.begin:
            raise ValueError(
                f"the model computes with a cache of earlier positions, whose hidden states are "
                f"unknown to the gates over its heads, which average over them: {_WAYS_OUT}"
            )
        if self.looks_around and self._is_packed(given):
            raise ValueError(
                f"several texts are packed into a row (by position_ids, cu_seq_lens_q or seq_idx), "
                f"and the gates over the heads average over rows: give each a row, or {_WAYS_OUT}"
            )

    def _is_packed(self, given: dict[str, Any]) -> bool:
        if given.get("cu_seq_lens_q") is not None or given.get("seq_idx") is not None:
            return True
        places = given.get("position_ids")
        if places is None:
            return False
        if places.dim() == 3:  # of time, height and width: the pixels of a picture share a time
            return bool((places[0].diff(dim=-1) < 0).any())
        restarts = places.diff(dim=-1) <= 0
        if isinstance(self.mask, Tensor) and self.mask.shape == places.shape:
            restarts = restarts & (self.mask[:, 1:] != 0) & (self.mask[:, :-1] != 0)
        return bool(restarts.any())

    def padding(self, batch: int, queries: int) -> Tensor | None:
        """`(batch, queries)`, `True` at padding, by the mask of the pass; None if it has none."""
        mask: Any = self.mask
        self.is_repeated = self.is_repeated or is_repeated()
        if self.is_repeated and self.is_gone:
            raise RuntimeError(
                "the gradients of passes with different masks are due at once, and layers are "
                "computed again for them: call backward() after each pass, or switch gradient "
                "checkpointing off"
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
                f"expected (batch, {queries}), with 0 at padding: what else a mask hides, gates "
                f"that average over positions would see: leave it out if nothing is, or {_WAYS_OUT}"
            )
        if is_tensor and mask.dim() == 4 and mask.size(-1) == mask.size(-2):
            own = mask[:, 0].diagonal(dim1=-2, dim2=-1)  # a text sees itself, padding does not
            return (hides(own) if own.is_floating_point() else own == 0).expand(batch, -1)
        return None


class HeadGates(nn.Module):
    """A system between what the heads of an attention have read and its output projection.

    Args:
        system: the system, made by its `over_heads`.
        place: the attention module, whose child this becomes.
        stack: what it shares with the others of the stack.
    """

    def __init__(self, system: MultiHeadAttention, place: Place, stack: Stack) -> None:
        super().__init__()
        self.system, self.stack, self.path = system, stack, place.path
        self.projection = place.projection_path
        self.is_causal = place.site != "encoder_self"
        self.looks_around = system.sees_other_positions(self.is_causal)
        self.farthest = _farthest(place, getattr(system, "gate_window", None))
        self.first = next(iter(list(inspect.signature(type(place.module).forward).parameters)[1:]))
        self.hidden: Tensor | None = None
        self.handles = [
            place.module.register_forward_pre_hook(self.note, with_kwargs=True),
            place.module.register_forward_hook(self.check_used),
        ]
        self.hooked: tuple[nn.Module, RemovableHandle] | None = None  # a tuple: it is no child
        self._hook(place.module)
        stack.users += 1

    def note(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the attention: keeps the hidden states that it is called with."""
        if attention._modules.get(NAME) is not self:
            raise RuntimeError(
                f"another module has taken the place of the gates at {self.path!r}, which hooks "
                f"still call: name the system in modules_to_save=['{NAME}.system'] of peft; start "
                f"a process for each device in place of nn.DataParallel"
            )
        self._hook(attention)
        self.hidden = args[0] if args else kwargs[self.first]
        if self.looks_around and self.farthest and self.hidden.size(1) > self.farthest:
            raise ValueError(
                f"the attention at {self.path!r} sees {self.farthest} positions at most, and the "
                f"gates over its heads average over {self.hidden.size(1)}: pass gate_window=1 to "
                f"gate_heads, or up to {self.farthest} where it is a sliding window"
            )

    def change(self, projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before the projection: what the heads have read becomes what the system makes of it."""
        heads, hidden = args[0], self.hidden
        self.hidden = None
        if hidden is None or heads.shape[:2] != hidden.shape[:2]:
            raise RuntimeError(
                f"the output projection of the attention at {self.path!r} gets "
                f"{tuple(heads.shape)}, expected one (batch, queries, heads * head_dim) in each "
                f"call of the attention: no gates can be over its heads"
            )
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
            raise RuntimeError(
                f"the attention at {self.path!r}, a {type(attention).__name__}, does not call its "
                f"output projection {self.projection!r}: no gates can be over its heads"
            )

    def _hook(self, attention: nn.Module) -> None:
        """Hooks the projection; also what has taken its place since, such as LoRA's module."""
        projection = attention.get_submodule(self.projection)
        if self.hooked is None or self.hooked[0] is not projection:
            if self.hooked is not None:
                self.hooked[1].remove()
            self.hooked = projection, projection.register_forward_pre_hook(self.change)

    def remove(self) -> None:
        """Takes the hooks away."""
        assert self.hooked is not None
        self.stack.users -= 1
        of_stack = [] if self.stack.users else [self.stack.handle]
        for handle in (*self.handles, self.hooked[1], *of_stack):
            handle.remove()


def _farthest(place: Place, gate_window: int | None) -> int | None:
    """How many positions a causal attention sees, if its gates see more; else None."""
    module: Any = place.module
    config: Any = getattr(module, "config", None)
    kind = dict(enumerate(getattr(config, "layer_types", None) or [])).get(place.layer)
    if place.site != "decoder_self" or kind == "full_attention":
        return None
    if kind == "chunked_attention":
        return int(config.attention_chunk_size)
    window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    if getattr(module, "attention_type", None) == "local":  # of GPT-Neo
        window = config.window_size
    return window if window and (gate_window or window + 1) > window else None


def forget_losses(model: nn.Module, args: object) -> None:
    """Before a model: systems that are not called in this pass, such as an encoder's, add none."""
    for module in model.modules():
        if isinstance(module, System):
            module.routing_loss = None


def add_losses(model: nn.Module, args: object, kwargs: dict[str, Any], output: Any) -> Any:
    """After a model in training: adds the losses of its systems to that of its output.

    Where batches are summed up before a step, `num_items_in_batch` is how many labels they have
    together, and the losses count as much as this batch's share of these.
    """
    labels, items = kwargs.get("labels"), kwargs.get("num_items_in_batch")
    as_tuple = isinstance(output, tuple) and labels is not None
    loss = output[0] if as_tuple else getattr(output, "loss", None)
    systems = [module for module in model.modules() if isinstance(module, System)]
    adding = [system for system in systems if system.routing_loss is not None]
    if loss is None or not model.training or not adding:
        return output
    added = auxiliary_loss(model)
    learns = any(p.requires_grad for system in adding for p in system.parameters())
    if learns and torch.is_grad_enabled() and not added.requires_grad:
        raise RuntimeError(
            "the losses of the systems over the heads have no gradient, which reentrant gradient "
            "checkpointing takes away: give gradient_checkpointing_enable() or TrainingArguments "
            "the checkpointing option use_reentrant=False"
        )
    if items is not None and labels is not None:
        shifted = getattr(model, "loss_type", None) == "ForCausalLM"  # so the Trainer counts
        predicted = labels[..., 1:] if shifted else labels
        added = added * (predicted != IGNORED_LABEL).sum() / items
    loss = loss + added.to(loss.device)
    if as_tuple:
        return (loss, *output[1:])
    output["loss"] = loss
    return output
