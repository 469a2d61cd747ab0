"""A system over the heads of one attention module: what hooks of the module do."""

import threading
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from headwise.heads.attention import MultiHeadAttention
from headwise.heads.system import AttentionOutput, is_repeated
from headwise.ops.labels import IGNORED_LABEL
from headwise.pretrained.layouts import AttentionModule
from headwise.pretrained.masks import (
    WAYS_OUT,
    Arguments,
    Hidden,
    LastMask,
    cached_positions,
    check_meaning,
    other_mask,
    padding_of,
    refuse_packed,
    sliding_window,
)

NAME = "head_gates"  # of the child of an attention module


class HeadGates(nn.Module):
    """A system over the heads of an attention module, whose child it is.

    A hook of the attention module notes the hidden states that it is called with. A hook of its
    output projection has the system change what the projection is to take. In training, a hook of
    the model adds the loss of the system to that of the model.

    Args:
        system: the system over the heads.
        options: those of its constructor that were given.
        model: the model, whose output has a loss.
        place: the attention module.
        beside: the self-attention of the same layer, whose queries are those of a cross-attention;
            None if there is none.
        layers: how many layers the stack has.
        last: what was found in the last mask of the model.
    """

    def __init__(
        self,
        system: MultiHeadAttention,
        options: dict[str, Any],
        model: nn.Module,
        place: AttentionModule,
        beside: AttentionModule | None,
        layers: int,
        last: LastMask,
    ) -> None:
        super().__init__()
        self.system = system
        self.options = options
        self.path, self.site, self.layer, self.layers = place.path, place.site, place.layer, layers
        self.is_cross = place.site == "decoder_cross"
        self.is_causal = place.site != "encoder_self"
        self.last = last
        self.projection = place.layout.projection
        self.arguments = _arguments(place)
        self.arguments_beside = None if beside is None else _arguments(beside)
        self.sliding = sliding_window(place.module)
        self.call = _Call()
        self.handles = [
            model.register_forward_pre_hook(self.begin),
            model.register_forward_hook(self.add_loss, with_kwargs=True, always_call=True),
            place.module.register_forward_pre_hook(self.note_call, with_kwargs=True),
            place.module.register_forward_hook(self.check_used, always_call=True),
        ]
        if self.is_cross and beside is not None:
            hook = beside.module.register_forward_pre_hook(self.note_padding, with_kwargs=True)
            self.handles.append(hook)
        self.on_projection: RemovableHandle | None = None
        self._hook_projection(place.module)

    # What hooks do, in the order of a call.

    def begin(self, model: nn.Module, args: object) -> None:
        """Before the model: no loss has been added yet."""
        self.call.loss = None

    def note_padding(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before the self-attention of a cross-attention's layer: its queries are the same."""
        assert self.arguments_beside is not None
        hidden, mask, cache, _ = self.arguments_beside.read(args, kwargs)
        self.call.padding = padding_of(hidden, mask, cached_positions(cache, self.layer))

    def note_call(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before the attention module: keeps its hidden states, and reads its mask."""
        hidden, mask, cache, position_ids = self.arguments.read(args, kwargs)
        self.call.hidden, self.call.gates = hidden, getattr(attention, NAME)
        cached = cached_positions(cache, self.layer)
        if self.is_cross and cache is not None:
            cached = cached - hidden.size(1)  # the self-attention has put those of this call there
        self.call.begin = cached
        if not self.is_cross:
            self.call.padding = padding_of(hidden, mask, cached)
        self.call.mask = None
        if self._sees_other_positions():
            self._check_cache(cached, hidden.size(1))
            if not self.is_cross:  # whose mask is of other positions than its queries
                if mask is None and position_ids is not None:
                    refuse_packed(attention, position_ids, self.path)
                self.call.mask = self._other_mask(mask, hidden)
        if not torch.compiler.is_compiling():
            self._check_place(attention)
            self._hook_projection(attention)

    def change_heads(self, projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before its output projection: what the heads have read becomes what the system makes."""
        heads, *others = args
        hidden, self.call.hidden = self.call.hidden, None
        mask, self.call.mask = self.call.mask, None
        padding, self.call.padding = self.call.padding, None
        if hidden is None:
            raise RuntimeError(
                f"the output projection of the attention at {self.path!r} is called, but not by "
                f"that attention, so the gates over its heads do not know their input; remove them "
                f"with headwise.remove_gates(model)"
            )
        out = self.call.gates(hidden, heads, padding=padding, mask=mask)
        if out.routing is not None and out.routing.loss is not None and not is_repeated():
            self.call.loss = out.routing.loss
        return out.output.to(heads.dtype), *others

    def check_used(self, attention: nn.Module, args: object, output: object) -> None:
        """After the attention module: its projection must have been called, unless that raised."""
        if self.call.hidden is None:
            return
        vars(self.call).clear()  # an error must keep no hidden states alive
        if output is not None:
            raise RuntimeError(
                f"the attention at {self.path!r}, a {type(attention).__name__}, has not called its "
                f"output projection {self.projection!r}, so no gates can be over its heads; "
                f"expected a module that calls it, not a kernel that takes its weights"
            )

    def add_loss(self, model: nn.Module, args: object, kwargs: dict[str, Any], output: Any) -> Any:
        """After the model: in training, adds the system's loss to that of its output.

        Where labels of further batches are in the same step, they are as many as
        `num_items_in_batch` says, and the loss counts as much as this batch's share of them: over
        the batches of a step it is a mean, as the model's own.
        """
        added, self.call.loss = self.call.loss, None
        labels = kwargs.get("labels")
        as_tuple = isinstance(output, tuple) and labels is not None
        loss = output[0] if as_tuple else getattr(output, "loss", None)
        if added is None or loss is None or not model.training:
            return output
        learns = any(parameter.requires_grad for parameter in self.system.parameters())
        if learns and torch.is_grad_enabled() and not added.requires_grad:
            raise RuntimeError(
                "the loss of the system over the heads has no gradient, since reentrant gradient "
                "checkpointing takes it away: give gradient_checkpointing_enable() or "
                "TrainingArguments the checkpointing option use_reentrant=False"
            )
        items = kwargs.get("num_items_in_batch")
        if items is not None and labels is not None:
            shifted = getattr(model, "loss_type", None) == "ForCausalLM"  # so the Trainer counts
            predicted = labels[..., 1:] if shifted else labels
            added = added * (predicted != IGNORED_LABEL).sum() / items
        loss = loss + added.to(loss.device)
        if as_tuple:
            return (loss, *output[1:])
        output["loss"] = loss
        return output

    # The system itself

    def forward(
        self,
        hidden: Tensor,
        heads: Tensor,
        *,
        padding: Tensor | None = None,
        mask: Hidden | None = None,
    ) -> AttentionOutput:
        """The system, as the hooks call it; or that of a copy which has taken this child's place.

        In training it keeps what it is given, and the backward pass has it decide again: what
        decisions are computed by would take more memory than that, and takes little time.

        Args:
            hidden: what the attention is called with, `(batch, queries, embed_dim)`.
            heads: what its heads have read, `(batch, queries, heads * head_dim)`.
            padding: `(batch, queries)`, `True` at padding.
            mask: what else is hidden; its positions are `(batch, 1, queries, queries)`.
        """
        # Compilers choose for themselves what to compute again.
        if self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            given = (hidden, heads, padding, mask)
            again: AttentionOutput = checkpoint(self._computed, *given, use_reentrant=False)
            return again
        return self._computed(hidden, heads, padding, mask)

    def _computed(
        self, hidden: Tensor, heads: Tensor, padding: Tensor | None, mask: Hidden | None
    ) -> AttentionOutput:
        parameter = next(self.system.parameters(), heads)
        made: AttentionOutput = self.system(
            hidden.to(parameter.device, parameter.dtype),
            value=heads,
            is_causal=self.is_causal if mask is None else mask.is_causal,
            attn_mask=None if mask is None else mask.positions,
            query_padding_mask=padding,
        )
        return made

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in (*self.handles, self.on_projection):
            if handle is not None:
                handle.remove()

    # What a call must be for gates that look at other positions

    def _sees_other_positions(self) -> bool:
        sees = getattr(self.system, "sees_other_positions", None)  # a tool may have wrapped it
        return sees is None or sees(self.is_causal)

    def _check_cache(self, cached: int | Tensor, queries: int) -> None:
        """Raises `ValueError` where earlier positions are known by their keys and values alone."""
        if not isinstance(cached, int) or cached > 0:
            raise ValueError(
                f"the model computes with a cache of earlier positions, whose hidden states the "
                f"gates over the heads at {self.path!r}, a {type(self.system).__name__}, do not "
                f"know: {WAYS_OUT}"
            )
        if self.sliding is None or self.last.warned or not self.is_causal:
            return  # a window with two sides stands in the mask that gates see
        window = getattr(self.system, "gate_window", 0)
        if queries > self.sliding and (window is None or window > self.sliding):
            self.last.warned = True
            warnings.warn(
                f"the attention at {self.path!r} sees the last {self.sliding} positions, and the "
                f"gates over its heads average all from the beginning of the text: pass "
                f"gate_window={self.sliding}, or less, to gate_heads if they are to see no more",
                stacklevel=2,
            )

    def _other_mask(self, mask: Any, hidden: Tensor) -> Hidden | None:
        """What gates must not see beside padding and, in a decoder, the future; None if no more."""
        if mask is None:
            return None
        batch, queries = hidden.shape[:2]
        is_plain = isinstance(mask, Tensor) and mask.dim() == 4 and mask.size(-2) == queries
        if is_plain and not self.last.checked and not torch.compiler.is_compiling():
            self.last.checked = True  # once: whoever looks at values waits for the device
            check_meaning(mask, self.path)
        found = self.last.ask(other_mask, mask, queries, self.is_causal, self.sliding)
        if found is None:
            return None
        return found._replace(positions=found.positions.expand(batch, -1, -1).unsqueeze(1))

    # The module around it

    def _check_place(self, attention: nn.Module) -> None:
        in_place = attention.get_submodule(NAME)
        if in_place is not self:
            raise RuntimeError(
                f"a {type(in_place).__name__} has taken the place of the gates over the heads at "
                f"{self.path!r}, but hooks still call these gates; to have a copy trained and "
                f"saved, name the system in them, as by modules_to_save=['{NAME}.system']"
            )

    def _hook_projection(self, attention: nn.Module) -> None:
        """Hooks the projection; also what takes its place later, such as LoRA's module."""
        projection = attention.get_submodule(self.projection)
        # PyTorch has no public list of a module's hooks.
        if self.change_heads not in projection._forward_pre_hooks.values():
            if self.on_projection is not None:
                self.on_projection.remove()
            self.on_projection = projection.register_forward_pre_hook(self.change_heads)


class _Call(threading.local):
    """The call of the attention module that is under way in a thread. A copy starts anew."""

    gates: Any = None  # the attention's child: a tool may have wrapped it
    hidden: Tensor | None = None
    padding: Tensor | None = None
    mask: Hidden | None = None
    begin: int | Tensor = 0  # how many positions a cache held before the call
    loss: Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Call, ()


def _arguments(place: AttentionModule) -> Arguments:
    return Arguments(place.module, (place.layout.mask, place.layout.cache, "position_ids"))
