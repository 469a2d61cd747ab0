"""What one attention module remembers between decoding steps."""

from collections.abc import Callable

import torch
from torch import Tensor


class AttentionCache:
    """Keys and values seen so far, and a system's own running state beside them.

    A self-attention's cache grows by each call's keys and values. A cross-attention's is
    `static`: its keys and values are computed by the first call and read by all later ones.
    `memory` is the system's own (MAE's gates keep the running mean of their inputs there).

    The methods that transformers' generation calls carry the names that it uses, so that a list
    of these serves as the layers of a `transformers.Cache`.
    """

    is_compileable = False
    is_sliding = False

    def __init__(self, *, static: bool = False) -> None:
        self.static = static
        self.keys: Tensor | None = None  # (batch, key heads, time, head_dim)
        self.values: Tensor | None = None
        self.memory: dict[str, Tensor] = {}  # each (batch, ...)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append this step's keys and values along time; returns all of them."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values

    @property
    def is_filled(self) -> bool:
        return self.keys is not None

    def get_seq_length(self) -> int:
        """Returns how many positions the cache holds."""
        return 0 if self.keys is None else self.keys.size(2)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row `i` becomes what row `beam_idx[i]` was, gates' state included: beam search."""
        self._each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the given rows only."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, in place of once."""
        self._each(lambda x: x.repeat_interleave(repeats, dim=0))

    def reset(self) -> None:
        """Forget everything."""
        self.keys = self.values = None
        self.memory = {}

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = change(self.keys), change(self.values)
        self.memory = {name: change(state) for name, state in self.memory.items()}
