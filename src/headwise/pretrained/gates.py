"""A system over the heads of one attention module: what hooks of the module do."""

import threading
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from headwise.heads.cache import AttentionCache
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import AttentionOutput
from headwise.ops.recompute import Passes
from headwise.ops.twins import is_transformed
from headwise.pretrained.layouts import AttentionModule
from headwise.pretrained.losses import AuxiliaryLosses
from headwise.pretrained.masks import (
    Arguments,
    LastMask,
    QueryPadding,
    cached_positions,
    check_meaning,
    other_mask,
    sliding_window,
)
from headwise.pretrained.memory import memory_beside

NAME = "head_gates"  # of the child of an attention module


class Surroundings(NamedTuple):
    """What a system over heads shares with others of its layer or of the model."""

    losses: AuxiliaryLosses
    padding: QueryPadding | None
    layers: int


class HeadGates(nn.Module):
    """A system over the heads of an attention module, whose child it is.

    A hook of the attention module notes the hidden states that it is called with. A hook of its
    output projection has the system change what the projection is to take. `options` are those of
    the system's constructor that were given.
    """

    def __init__(
        self,
        system: MultiHeadAttention,
        options: dict[str, Any],
        place: AttentionModule,
        around: Surroundings,
        last: LastMask,
    ) -> None:
        super().__init__()
        self.system = system
        self.options = options
        self.path, self.site, self.layer = place.path, place.site, place.layer
        self.site_of_heads = (place.site, place.layer)  # where `sites` says that the system stands
        self.is_causal = place.site != "encoder_self"
        self.around = around
        for shared in (around.padding, around.losses):
            if shared is not None:
                shared.users += 1
        self.last = last
        self.projection = place.layout.projection
        self.queries = place.queries if system.needs_queries else None
        self.arguments = Arguments(place.module, (place.layout.mask, place.layout.cache))
        self.sliding = sliding_window(place.module)
        self.call = _Call()
        self.passes = Passes()
        self.handles = [
            place.module.register_forward_pre_hook(self.note_call, with_kwargs=True),
            place.module.register_forward_hook(self.check_used, always_call=True),
        ]
        self.on_projection: RemovableHandle | None = None
        self.on_queries: RemovableHandle | None = None
        self._hook_parts(place.module)

    def note_call(
        self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before the attention module: keeps its hidden states."""
        self.call.hidden, mask, self.call.cache = self.arguments.read(args, kwargs)
        self.call.gates = getattr(attention, NAME)
        self.call.attn_mask = None
        if not torch.compiler.is_compiling():
            if self.site != "decoder_cross":  # whose mask is of other positions than its queries
                self.call.attn_mask = self._other_mask(mask)
            self._check_place(attention)
            self._hook_parts(attention)

    def forward(
        self,
        hidden: Tensor,
        heads: Tensor,
        queries: Tensor | None,
        *,
        padding: Tensor | None,
        cache: AttentionCache | None,
        attn_mask: Tensor | None = None,
    ) -> AttentionOutput:
        """The system, as the hooks call it; or that of a copy which has taken this child's place.

        In training it keeps what it is given, and the backward pass has it decide again: what
        decisions are computed by would take more memory than that, and takes little time.

        Args:
            hidden: what the attention is called with, `(batch, queries, embed_dim)`.
            heads: what its heads have read, `(batch, queries, heads * head_dim)`.
            queries: the queries of its heads, in that shape, for a system that decides by them.
            padding: `(batch, queries)`, `True` at padding.
            cache: what the system remembers.
            attn_mask: boolean `(batch, 1, queries, queries)`, `True` = not attended, if that is
                neither padding alone nor, in a decoder, also the future.
        """
        given = (hidden, heads, queries, padding, cache, attn_mask)
        if self._computes_twice(hidden, cache):
            return checkpoint(self._computed, *given, use_reentrant=False)
        return self._computed(*given)

    def _computes_twice(self, hidden: Tensor, cache: AttentionCache | None) -> bool:
        """Whether a pass in training keeps no more than it is given.

        What a cache remembers cannot be taken back, and compilers choose for themselves what to
        compute again. Checkpointing around the model has its repeated passes do as the first did;
        if it is reentrant, that had no gradients.
        """
        if not self.training or torch.compiler.is_compiling() or is_transformed():
            return False
        keeps = self.passes.facts(hidden).setdefault("keeps", not torch.is_grad_enabled())
        return cache is None and not keeps

    def _computed(
        self,
        hidden: Tensor,
        heads: Tensor,
        queries: Tensor | None,
        padding: Tensor | None,
        cache: AttentionCache | None,
        attn_mask: Tensor | None,
    ) -> AttentionOutput:
        parameter = next(self.system.parameters(), heads)
        made: AttentionOutput = self.system(
            hidden.to(parameter.device, parameter.dtype),
            key=queries,
            value=heads,
            is_causal=self.is_causal and attn_mask is None,
            attn_mask=attn_mask,
            query_padding_mask=padding,
            cache=cache,
        )
        return made

    def note_queries(self, projection: nn.Module, args: object, queries: Tensor) -> None:
        """After its query projection: keeps the queries, for a system that decides by them."""
        width = self.system.num_heads * self.system.head_dim
        self.call.queries = queries.flatten(2)[..., :width]

    def change_heads(self, projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before its output projection: what the heads have read becomes what the system makes."""
        heads, *others = args
        hidden, self.call.hidden = self.call.hidden, None
        attn_mask, self.call.attn_mask = self.call.attn_mask, None
        queries, self.call.queries = self.call.queries, None
        cache, self.call.cache = self.call.cache, None  # all keys and values: not to be kept alive
        if hidden is None:
            raise RuntimeError(
                f"the output projection of the attention at {self.path!r} is called, but not by "
                f"that attention, so the gates over its heads do not know their input; remove them "
                f"with headwise.remove_gates(model)"
            )
        around = self.around.padding
        padding = None if around is None else around.now.positions
        texts = None if around is None else around.now.texts
        if around is not None and texts is not None:  # each gets a row of its own
            self._check_hides_no_more(around.now.hidden)
            hidden, heads = texts.apart(hidden), texts.apart(heads)
            queries = None if queries is None else texts.apart(queries)
            within = texts.padding if padding is None else texts.apart(padding)
            padding = texts.padding | within
            attn_mask = None  # which hides the other texts, or more from systems that do not look
        output, _, routing = self.call.gates(
            hidden,
            heads,
            queries,
            padding=padding,
            cache=memory_beside(cache, self.path, self.around.layers, hidden.size(1)),
            attn_mask=attn_mask,
        )
        output = output if texts is None else texts.together(output)
        if routing is not None and routing.loss is not None:
            learns = any(parameter.requires_grad for parameter in self.system.parameters())
            self.around.losses.add(routing.loss, learns)
        return output.to(heads.dtype), *others

    def check_used(self, attention: nn.Module, args: object, output: object) -> None:
        """After the attention module: its projection must have been called, unless that raised."""
        if self.call.hidden is None:
            return
        vars(self.call).clear()  # an error must keep neither hidden states nor a cache alive
        if output is not None:
            raise RuntimeError(
                f"the attention at {self.path!r}, a {type(attention).__name__}, has not called its "
                f"output projection {self.projection!r}, so no gates can be over its heads; "
                f"expected a module that calls it, not a kernel that takes its weights"
            )

    def remove(self) -> None:
        """Takes the hooks away; those that it shares, if no other gates are left that need them."""
        for handle in (*self.handles, self.on_projection, self.on_queries):
            if handle is not None:
                handle.remove()
        for shared in (self.around.padding, self.around.losses):
            if shared is not None:
                shared.users -= 1
                if shared.users == 0:
                    shared.remove()

    def _other_mask(self, mask: Any) -> Tensor | None:
        """The mask of this call, if gates have to look at it; where there is a past, they do not.

        Of what a cache holds they remember a sum: they see all of it but padding.
        """
        hidden = self.call.hidden
        assert hidden is not None
        queries = hidden.size(1)
        cached = cached_positions(self.call.cache, self.layer)
        self._warn_of_sliding(cached, queries)
        if queries == 1 or not isinstance(cached, int) or cached:
            return None
        if not isinstance(mask, Tensor) or mask.dim() != 4 or mask.size(-2) != queries:
            return None
        if hasattr(self.system, "gate_window") and not self.last.checked:
            self.last.checked = True  # once: whoever looks at values waits for the device
            check_meaning(mask, self.path)
        settings = hidden.size(0), queries, self.is_causal, self.sliding
        return self.last.ask(other_mask, mask, *settings)

    def _check_hides_no_more(self, hidden: tuple[int, int, int] | None) -> None:
        """Raises `ValueError` where a mask hides within packed texts what the system would see."""
        if hidden is None or not self.system.sees_other_positions(self.is_causal):
            return
        row, query, key = hidden
        raise ValueError(
            f"the attention mask packs several texts into a row and hides parts of a text from "
            f"itself too: in row {row} position {key} from position {query}. The gates over the "
            f"heads at {self.path!r}, a {type(self.system).__name__}, would see it, since they "
            f"look at all of a packed text{' up to a position' if self.is_causal else ''}: give "
            f"each text a row of its own, or take a system that decides at each position by "
            f"itself, such as 'gated'"
        )

    def _warn_of_sliding(self, cached: int | Tensor, queries: int) -> None:
        if self.sliding is None or self.last.warned or not isinstance(cached, int):
            return
        if not self.is_causal:  # its window has two sides, and stands in the mask that gates see
            return
        window = getattr(self.system, "gate_window", 0)
        if cached + queries > self.sliding and (window is None or window > self.sliding):
            self.last.warned = True
            warnings.warn(
                f"the attention at {self.path!r} sees the last {self.sliding} positions, and the "
                f"gates over its heads average all from the beginning of the text: pass "
                f"gate_window={self.sliding}, or less, to gate_heads if they are to see no more",
                stacklevel=2,
            )

    def _check_place(self, attention: nn.Module) -> None:
        in_place = attention.get_submodule(NAME)
        if in_place is not self:
            raise RuntimeError(
                f"a {type(in_place).__name__} has taken the place of the gates over the heads at "
                f"{self.path!r}, but hooks still call these gates; to have a copy trained and "
                f"saved, name the system in them, as by modules_to_save=['{NAME}.system']"
            )

    def _hook_parts(self, attention: nn.Module) -> None:
        """Hooks the projections; also what takes their places later, such as LoRA's modules."""
        # PyTorch has no public list of a module's hooks.
        projection = attention.get_submodule(self.projection)
        if self.change_heads not in projection._forward_pre_hooks.values():
            if self.on_projection is not None:
                self.on_projection.remove()
            self.on_projection = projection.register_forward_pre_hook(self.change_heads)
        if self.queries is None:
            return
        queries = attention.get_submodule(self.queries)
        if self.note_queries not in queries._forward_hooks.values():
            if self.on_queries is not None:
                self.on_queries.remove()
            self.on_queries = queries.register_forward_hook(self.note_queries)


class _Call(threading.local):
    """The call of the attention module that is under way in a thread. A copy starts anew."""

    gates: Any = None  # the attention's child: a tool may have wrapped it
    hidden: Tensor | None = None
    attn_mask: Tensor | None = None
    queries: Tensor | None = None
    cache: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Call, ()
