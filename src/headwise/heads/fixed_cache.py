"""A cache of a fixed size, which a compiled step of decoding reads and writes in place."""

from typing import NoReturn

import torch
from torch import Tensor

from headwise.heads.cache import AttentionCache


class FixedAttentionCache(AttentionCache):
    """Keys and values of at most `max_length` positions, in tensors that stay where they are.

    The shape of no tensor depends on how many positions there are, which is a tensor too: so
    `torch.compile` makes one graph of a step. What `extend` returns after the first call has all
    positions, filled or not.
    """

    is_compileable = True
    is_croppable = False

    def __init__(self, max_length: int, *, static: bool = False) -> None:
        super().__init__(static=static)
        if max_length < 1:
            raise ValueError(f"max_length is {max_length}, expected a positive number")
        self.max_length = max_length
        self.length: Tensor | None = None  # (), how many positions are filled

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.static:
            self.keys, self.values = _stays(keys), _stays(values)
            return keys, values
        time = keys.size(2)
        if self.length is None or self.keys is None or self.values is None:
            self._check(time)
            self.length = _stays(torch.full((), time, device=keys.device))
            self.keys, self.values = self._buffer(keys), self._buffer(values)
            return keys, values
        if keys.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check(int(self.length) + time)
        positions = self.length + torch.arange(time, device=keys.device)
        self.keys.index_copy_(2, positions, keys.to(self.keys.dtype))
        self.values.index_copy_(2, positions, values.to(self.values.dtype))
        self.length.add_(time)
        return self.keys, self.values

    def recall(self, name: str, last: int, like: Tensor, *, skip_empty: bool = False) -> Tensor:
        fresh = name not in self.memory
        recalled = super().recall(name, last, like, skip_empty=skip_empty)
        if fresh:
            _stays(self.memory[name])
        return recalled

    def remember(self, name: str, steps: Tensor, new: int) -> None:
        self.memory[name].copy_(self._last(name, steps))

    def get_seq_length(self) -> int | Tensor:
        # A copy: `extend` changes the number in place.
        return 0 if self.length is None else self.length.clone()

    def get_max_length(self) -> int:
        return self.max_length

    def activate_past_recording(self) -> NoReturn:
        raise ValueError(
            "a cache of a fixed size keeps no past to go back to: leave out "
            "cache_implementation='static', or give new_cache() no max_length, where positions are "
            "removed again, as in assisted decoding"
        )

    def check_crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            self.activate_past_recording()

    def crop(self, tokens_to_remove: int) -> None:
        self.check_crop(tokens_to_remove)

    def reset(self) -> None:
        super().reset()
        self.length = None

    def _buffer(self, first: Tensor) -> Tensor:
        """Room for all positions, with those of the first call in it."""
        batch, heads, time, width = first.shape
        buffer = first.new_zeros(batch, heads, self.max_length, width)
        buffer[:, :, :time] = first
        return _stays(buffer)

    def _check(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"the cache has room for {self.max_length} positions, expected {length}: make it "
                f"larger (max_length of new_cache(), max_cache_len of generate())"
            )


def _stays(tensor: Tensor) -> Tensor:
    """Tells the compiler that a tensor is changed in place and stays where it is.

    Otherwise no CUDA graph could be made of what changes it. transformers does so with its caches.
    """
    if not torch.compiler.is_compiling():
        torch._dynamo.mark_static_address(tensor)
    return tensor
