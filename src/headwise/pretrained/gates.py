"""A system over the heads of one attention module: what hooks of the module do."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headwise.heads.multi_head import MultiHeadAttention
from headwise.pretrained.arguments import Arguments
from headwise.pretrained.checkpointing import ExactCheckpointing
from headwise.pretrained.layouts import AttentionModule
from headwise.pretrained.losses import AuxiliaryLosses
from headwise.pretrained.memory import memory_beside
from headwise.pretrained.padding import QueryPadding

NAME = "head_gates"  # of the child of an attention module


class Surroundings(NamedTuple):
    """What a system over heads shares with others of its layer or of the model.

    Attributes:
        losses: collects the systems' losses.
        padding: knows the padding of the layer's queries; None if nothing does.
        checkpointing: makes gradient checkpointing of the layer exact; None if it has none.
        layers: how many layers of the model have keys and values in a cache.
    """

    losses: AuxiliaryLosses
    padding: QueryPadding | None
    checkpointing: ExactCheckpointing | None
    layers: int


class HeadGates(nn.Module):
    """A system over the heads of an attention module, whose child it is.

    A hook of the attention module notes the hidden states that it is called with. A hook of its
    output projection has the system change what the projection is to take.

    Args:
        system: the system, made by `over_heads`.
        options: further arguments of its constructor.
        place: the attention module and what is known of it.
        around: what it shares with other modules.
    """

    def __init__(
        self,
        system: MultiHeadAttention,
        options: dict[str, Any],
        place: AttentionModule,
        around: Surroundings,
    ) -> None:
        super().__init__()
        self.system = system
        self.options = options
        self.path, self.site, self.layer = place.path, place.site, place.layer
        self.is_causal = place.site != "encoder_self"
        self.around = around
        self.projection = place.layout.projection
        self.queries = place.queries if system.needs_queries else None
        self.arguments = Arguments(place.module, (place.layout.cache,))
        self.call = _Call()
        self.handles = [
            place.module.register_forward_pre_hook(self.note_call, with_kwargs=True),
            place.module.register_forward_hook(self.check_used),
        ]
        self.on_projection: RemovableHandle | None = None
        self.on_queries: RemovableHandle | None = None
        self._hook_parts(place.module)

    def note_call(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before the attention module: keeps its hidden states."""
        self.call.hidden = args[0] if args else kwargs["hidden_states"]
        (self.call.cache,) = self.arguments.read(args, kwargs)
        if not torch.compiler.is_compiling():
            self._hook_parts(attention)

    def note_queries(self, projection: nn.Module, args: object, queries: Tensor) -> None:
        """After its query projection: keeps the queries, for a system that decides by them."""
        width = self.system.num_heads * self.system.head_dim
        self.call.queries = queries.flatten(2)[..., :width]

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
        padding = self.around.padding
        parameter = next(self.system.parameters(), heads)
        output, _, routing = self.system(
            hidden.to(parameter.device, parameter.dtype),
            key=self.call.queries,
            value=heads,
            is_causal=self.is_causal,
            query_padding_mask=None if padding is None else padding.positions,
            cache=memory_beside(self.call.cache, self.path, self.around.layers),
        )
        if routing is not None and routing.loss is not None:
            learns = any(parameter.requires_grad for parameter in self.system.parameters())
            self.around.losses.add(routing.loss, learns)
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
        """Takes the hooks away, those too that it shares."""
        for handle in (*self.handles, self.on_projection, self.on_queries):
            if handle is not None:
                handle.remove()
        for hooked in (self.around.padding, self.around.losses, self.around.checkpointing):
            if hooked is not None:
                hooked.remove()

    def _hook_parts(self, attention: nn.Module) -> None:
        """Hooks the projections; also what takes their places later, such as LoRA's modules."""
        projection = attention.get_submodule(self.projection)
        if _is_elsewhere(self.on_projection, projection._forward_pre_hooks):
            self.on_projection = projection.register_forward_pre_hook(self.change_heads)
        if self.queries is None:
            return
        queries = attention.get_submodule(self.queries)
        if _is_elsewhere(self.on_queries, queries._forward_hooks):
            self.on_queries = queries.register_forward_hook(self.note_queries)


class _Call:
    """The call of the attention module that is under way."""

    hidden: Tensor | None = None
    queries: Tensor | None = None
    cache: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _is_elsewhere(handle: RemovableHandle | None, hooks: dict[int, Any]) -> bool:
    """Whether a hook is not among those of a module; it is then removed from where it is."""
    if handle is not None and handle.id in hooks:
        return False
    if handle is not None:
        handle.remove()
    return True
