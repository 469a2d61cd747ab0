"""A system over the heads of one attention module: what hooks of the module do."""

from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.multi_head import MultiHeadAttention
from headwise.pretrained.arguments import Arguments
from headwise.pretrained.layouts import AttentionModule
from headwise.pretrained.losses import AuxiliaryLosses
from headwise.pretrained.memory import memory_beside
from headwise.pretrained.padding import QueryPadding

NAME = "head_gates"  # of the child of an attention module


class HeadGates(nn.Module):
    """A system over the heads of an attention module, whose child it is.

    A hook of the attention module notes the hidden states that it is called with. A hook of its
    output projection has the system change what the projection is to take.

    Args:
        system: the system, made by `over_heads`.
        place: the attention module and what is known of it.
        padding: what knows the padding of the queries; None if nothing does.
        losses: what collects the system's losses.
        layers: how many layers of the model have keys and values in a cache.
    """

    def __init__(
        self,
        system: MultiHeadAttention,
        place: AttentionModule,
        padding: QueryPadding | None,
        losses: AuxiliaryLosses,
        layers: int,
    ) -> None:
        super().__init__()
        self.system = system
        self.path, self.site, self.layer = place.path, place.site, place.layer
        self.is_causal = place.site != "encoder_self"
        self.padding, self.losses, self.layers = padding, losses, layers
        self.projection = place.layout.projection
        self.arguments = Arguments(place.module, (place.layout.cache,))
        self.call = _Call()
        self.handles = [
            place.module.register_forward_pre_hook(self.note_call, with_kwargs=True),
            place.module.register_forward_hook(self.check_used),
        ]
        self.on_projection = place.projection.register_forward_pre_hook(self.change_heads)

    def note_call(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before the attention module: keeps its hidden states."""
        self.call.hidden = args[0] if args else kwargs["hidden_states"]
        (self.call.cache,) = self.arguments.read(args, kwargs)
        if not torch.compiler.is_compiling():
            self._follow_projection(attention)

    def change_heads(self, projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before its output projection: what the heads have read becomes what the system makes."""
        heads, *others = args
        hidden, self.call.hidden = self.call.hidden, None
        if hidden is None:
            raise RuntimeError(
                f"the output projection of the attention at {self.path!r} is called, but not by "
                f"that attention, so the gates over its heads do not know their input; remove them "
                f"with headwise.remove(model)"
            )
        parameter = next(self.system.parameters(), heads)
        output, _, routing = self.system(
            hidden.to(parameter.device, parameter.dtype),
            value=heads,
            is_causal=self.is_causal,
            query_padding_mask=None if self.padding is None else self.padding.positions,
            cache=memory_beside(self.call.cache, self.path, self.layers),
        )
        if routing is not None:
            self.losses.add(routing.loss)
        return output.to(heads.dtype), *others

    def check_used(self, attention: nn.Module, args: object, output: object) -> None:
        """After the attention module: its projection must have been called."""
        if self.call.hidden is not None:
            raise RuntimeError(
                f"the attention at {self.path!r}, a {type(attention).__name__}, has not called its "
                f"output projection {self.projection!r}, so no gates can be over its heads; "
                f"expected a module that calls it, not a kernel that takes its weights"
            )

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in (*self.handles, self.on_projection):
            handle.remove()
        if self.padding is not None:
            self.padding.handle.remove()

    def _follow_projection(self, attention: nn.Module) -> None:
        """Moves the hook if another module has taken the projection's place, such as LoRA's."""
        projection = attention.get_submodule(self.projection)
        if self.on_projection.id not in projection._forward_pre_hooks:
            self.on_projection.remove()
            self.on_projection = projection.register_forward_pre_hook(self.change_heads)


class _Call:
    """The call of the attention module that is under way."""

    hidden: Tensor | None = None
    cache: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {}
