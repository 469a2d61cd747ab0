"""What the heads of one attention read in one call, for those who observe it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headwise.heads.system import Routing
from headwise.ops.masks import blocks, causal_mask

if TYPE_CHECKING:
    from headwise.heads.attention import Attention, Inputs


class HeadsRead(NamedTuple):
    """One call of an attention, between `attend` and what is made of the heads.

    Tensors are the call's own, with their graph; nothing of it is computed for the observer.

    Attributes:
        attention: the module.
        inputs: what the call was given.
        q: queries, `(batch, heads, queries, head_dim)`.
        k, v: keys and values, `(batch, key heads, keys, head_dim)`.
        mask: broadcasts to `(batch, heads, queries, keys)`; boolean `True` is not attended, a
            float mask is added. None where all keys are attended, or `is_causal` says which.
        is_causal: query t attends to the keys 0 … t.
        outputs: what each head reads, `(batch, heads, queries, head_dim)`.
        routing: what the attention decided, its padding included, or None.
    """

    attention: "Attention"
    inputs: "Inputs"
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    is_causal: bool
    outputs: Tensor
    routing: Routing | None

    @property
    def chosen(self) -> Tensor | None:
        """The heads that each query has chosen, `(batch, queries, heads)`.

        Number j of the heads of `q` and `outputs` is for query t head `chosen[:, t, j]`. None where
        all queries have the same heads, in their order.
        """
        if not self.attention.chooses_heads or self.routing is None:
            return None
        indices, units = self.routing.indices, self.routing.weights.size(-1)
        assert indices is not None
        # A unit may have a head for each head of keys: those of the first head of keys come first.
        each = self.q.size(1) // indices.size(-1)
        return torch.cat([indices + head * units for head in range(each)], dim=-1)

    @property
    def num_heads(self) -> int:
        """How many heads there are, chosen or not."""
        chosen = self.chosen
        if chosen is None or self.routing is None or self.routing.indices is None:
            return self.q.size(1)
        return self.routing.weights.size(-1) * (chosen.size(-1) // self.routing.indices.size(-1))

    def weights(self, sequences: slice = slice(None)) -> Tensor:
        """Computes the attention weights of some sequences, `(batch, heads, queries, keys)`.

        Example:
            >>> import headwise as hw
            >>> from headwise.models.decisions import heads_read
            >>> attention, reads = hw.MultiHeadAttention(16, 4), []
            >>> with heads_read(attention, lambda place, read: reads.append(read)):
            ...     y = attention(torch.randn(2, 5, 16))
            >>> reads[0].weights().shape, reads[0].weights(slice(0, 1)).shape
            (torch.Size([2, 4, 5, 5]), torch.Size([1, 4, 5, 5]))
        """
        mask = self.mask
        if self.is_causal:
            mask = causal_mask(self.q.size(2), self.k.size(2), device=self.q.device)
        elif mask is not None and mask.dim() == 4 and mask.size(0) > 1:
            mask = mask[sequences]
        return self.attention.attention_weights(self.q[sequences], self.k[sequences], mask)

    def attended(self) -> Tensor:
        """Which keys a query may attend to: boolean, broadcasts to the shape of `weights`."""
        if self.is_causal:
            return ~causal_mask(self.q.size(2), self.k.size(2), device=self.q.device)
        if self.mask is None:
            return torch.ones(1, 1, self.k.size(2), dtype=torch.bool, device=self.q.device)
        return ~blocks(self.mask)

    def every_head(self) -> "HeadsRead":
        """Computes what all heads would read for each query, also those that it has not chosen.

        Returns the same call with the heads in their order, and `routing` None.

        Raises:
            ValueError: the mask is another one for each chosen head.
        """
        if self.chosen is None:
            return self
        if self.mask is not None and self.mask.dim() == 4 and self.mask.size(1) > 1:
            raise ValueError(
                f"attn_mask was given for each of {self.mask.size(1)} chosen heads, expected one "
                f"that is the same for all heads: it does not say what the others attend to"
            )
        q = self.attention.placed(self.attention.queries_of_every_head(self.inputs), self.inputs)
        outputs = self.attention.attend(q, self.k, self.v, self.mask, self.is_causal)
        return self._replace(q=q, outputs=outputs, routing=None)


Observer = Callable[[HeadsRead], None]


@contextmanager
def observing(observers: Iterable[tuple["Attention", Observer]]) -> Iterator[None]:
    """While this context is open, each attention calls the observer beside it."""
    added: list[tuple[Attention, Observer]] = []
    try:
        for attention, observer in observers:
            attention.observers = (*attention.observers, observer)
            added.append((attention, observer))
        yield
    finally:
        for attention, own in added:
            others = tuple(other for other in attention.observers if other is not own)
            attention.observers = others
            if not others and not torch.compiler.is_compiling():
                del attention.observers  # as before: else a compiled model would be compiled anew
