"""What one attention module remembers between decoding steps."""

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn


class AttentionCache:
    """Keys and values seen so far, and a system's own running state beside them.

    A self-attention's cache grows by each call's keys and values. A cross-attention's is
    `static`: its keys and values are computed by the first call and read by all later ones.
    `memory` is the system's own: `recall` and `remember` keep it such that `crop` can go back.

    A cache belongs to the module that fills it, until `reset`. A copy of a cache belongs to the
    next module of the same class that is called with it.

    The methods that transformers' generation calls carry the names that it uses, so that a list
    of these serves as the layers of a `transformers.Cache`.
    """

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, *, static: bool = False) -> None:
        self.static = static
        self.keys: Tensor | None = None  # (batch, key heads, time, head_dim)
        self.values: Tensor | None = None
        self.memory: dict[str, Tensor] = {}  # each (batch, ...), or by `remember` (batch, steps, …)
        self.needed: dict[str, int] = {}  # how many of the last steps the next call needs
        self.sparse: set[str] = set()  # the memories in which steps of zeros do not count
        self.record_past = False
        self.owner: weakref.ref[nn.Module] | None = None  # the module that has filled it
        self.owner_class: str | None = None

    def check_call(self, module: nn.Module, key: Tensor, is_self_attention: bool) -> None:
        """Raises `ValueError` unless the cache is empty, or is that of a module and of its keys."""
        if self.static and is_self_attention:
            raise ValueError(
                "cache is static, for the keys of a cross-attention that stay the same, expected "
                "AttentionCache() in self-attention; in cross-attention, give key in each call"
            )
        owner = None if self.owner is None else self.owner()
        if owner is not module:
            name = type(module).__qualname__
            other = self.owner_class not in (None, name)
            if self.is_filled and (other or owner is not None):
                raise ValueError(
                    f"cache is that of another module, a {self.owner_class}, expected one of its "
                    f"own for this {name}: make an AttentionCache() for each attention, and a "
                    f"new_cache() for each model; for a copy of a module, copy.deepcopy(cache)"
                )
            self.owner, self.owner_class = weakref.ref(module), name
        if self.keys is None:
            return
        if self.keys.size(0) != key.size(0):
            raise ValueError(
                f"cache holds {self.keys.size(0)} sequences, expected {key.size(0)}, the batch of "
                f"this call: make a new one for another batch; batch_repeat_interleave and "
                f"batch_select_indices change its rows"
            )
        if self.static and self.keys.size(2) != key.size(1):
            raise ValueError(
                "cache is static and holds the keys of another source, which it would go on "
                "reading: make a new one for each source, or call reset()"
            )

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append this step's keys and values along time; returns all of them."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values

    def recall(self, name: str, last: int, like: Tensor, *, skip_empty: bool = False) -> Tensor:
        """Returns the last steps of what `remember` was given; zeros where there were none yet.

        Args:
            name: of what the system remembers.
            last: how many steps.
            like: `(batch, steps, ...)` with the shape of a step, its dtype and device.
            skip_empty: each row gives its last steps that are not zero, as padding is.

        Returns:
            `(batch, last, ...)`.
        """
        if name not in self.memory:
            self.needed[name] = last
            if skip_empty:
                self.sparse.add(name)
            self.memory[name] = like.new_zeros(like.size(0), last, *like.shape[2:])
        return self._last(name, self.memory[name])

    def remember(self, name: str, steps: Tensor, new: int) -> None:
        """Keeps the last steps for `recall`, which has to come first in each call.

        Of `steps`, `(batch, steps, ...)`, the last `new` are of this call, one for each position.
        """
        if self.record_past:
            added = steps[:, steps.size(1) - new :]  # [-new:] would be all where there are none
            self.memory[name] = torch.cat([self.memory[name], added], dim=1)
        else:
            self.memory[name] = self._last(name, steps)

    @property
    def is_filled(self) -> bool:
        return self.keys is not None

    def get_seq_length(self) -> int | Tensor:
        """Returns how many positions the cache holds."""
        return 0 if self.keys is None else self.keys.size(2)

    def get_max_length(self) -> int:
        """Returns how many positions the cache can hold; -1 if it grows."""
        return -1

    def activate_past_recording(self) -> None:
        """From now on keep all steps that `remember` is given, back to the last `crop`."""
        self.record_past = True

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raises the error that `crop` would raise, and changes nothing."""
        # Of a memory there is what was computed since `activate_past_recording`.
        kept = [
            state.size(1) - self.needed[name] if name in self.needed else 0
            for name, state in self.memory.items()
        ]
        if self.keys is not None and not self.static:
            kept.append(self.keys.size(2))
        most = min(kept, default=-tokens_to_remove)
        if not -most <= tokens_to_remove <= 0:
            raise ValueError(
                f"tokens_to_remove is {tokens_to_remove}, expected {-most} to 0: a system's memory "
                f"goes back to where activate_past_recording() was called, or to the last crop "
                f"after that; a memory that is not kept by remember() does not"
            )

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last positions, and all steps that were kept to go back further.

        Args:
            tokens_to_remove: how many, as a negative number, as in transformers; or 0.
        """
        self.check_crop(tokens_to_remove)
        if tokens_to_remove and not self.static and self.keys is not None:
            assert self.values is not None
            self.keys = self.keys[:, :, :tokens_to_remove]
            self.values = self.values[:, :, :tokens_to_remove]
        for name in self.needed:
            end = self.memory[name].size(1) + tokens_to_remove
            self.memory[name] = self._last(name, self.memory[name][:, :end])

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
        self.memory, self.needed, self.sparse = {}, {}, set()
        self.owner = self.owner_class = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"owner": None}

    def _last(self, name: str, steps: Tensor) -> Tensor:
        """The last steps of a memory, as many as its system needs."""
        last = self.needed[name]
        if name in self.sparse and steps.size(1) > last:
            counts = (steps != 0).flatten(2).any(-1)  # (batch, steps)
            # A stable sort puts the steps of zeros first, and keeps the order of the others.
            order = counts.byte().argsort(dim=1, stable=True)[:, -last:]
            order = order.reshape(*order.shape, *[1] * (steps.dim() - 2))
            return steps.take_along_dim(order, 1)
        return steps[:, -last:]

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = change(self.keys), change(self.values)
        self.memory = {name: change(state) for name, state in self.memory.items()}


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
