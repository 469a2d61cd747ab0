"""The memory of an attention between the steps of decoding."""

from collections.abc import Callable
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor


class AttentionCache:
    """Keys and values seen so far, and a system's own running state beside them.

    A self-attention's cache grows by each call's keys and values. A cross-attention's is
    `static`: its keys and values are computed by the first call and read by all later ones.
    Each attention has a cache of its own, each batch of sequences new ones.

    Attributes:
        keys, values: `(batch, key heads, time, head_dim)`, or None before the first call.
        memory: tensors `(batch, ...)` of earlier steps, by names, that a system needs.

    Example:
        >>> import headwise as hw
        >>> attention, x, cache = hw.MultiHeadAttention(16, 4).eval(), torch.randn(2, 5, 16), None
        >>> cache = AttentionCache()
        >>> steps = [attention(x[:, [t]], is_causal=True, cache=cache).output for t in range(5)]
        >>> whole = attention(x, is_causal=True).output
        >>> torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-6)
        True
    """

    def __init__(self, *, static: bool = False) -> None:
        self.static = static
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory: dict[str, Tensor] = {}

    def __copy__(self) -> Self:
        """A cache for another continuation; it shares the tensors, which no step changes."""
        copied = type(self)(static=self.static)
        copied.__dict__ |= self.__dict__
        copied._map(lambda tensor: tensor)  # into a memory of its own
        return copied

    def __deepcopy__(self, memo: Any) -> Self:
        """A cache with tensors of its own, without a graph."""
        copied = copy(self)
        copied._map(lambda tensor: tensor.detach().clone())
        return copied

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends this step's keys and values along time; returns all of them."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values

    def get_seq_length(self) -> int:
        """The number of positions in the cache."""
        return 0 if self.keys is None else self.keys.size(2)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was, a system's memory included: beam search."""
        self._map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, in place of once."""
        self._map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def _map(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replaces each tensor of the cache by a function of it."""
        self.memory = {name: function(tensor) for name, tensor in self.memory.items()}
        if self.keys is not None and self.values is not None:
            self.keys, self.values = function(self.keys), function(self.values)
