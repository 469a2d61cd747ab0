"""What systems over heads remember while a model generates, beside its keys and values."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache

from headwise.heads.cache import AttentionCache, FixedAttentionCache
from headwise.transformers_internals import CACHE, make_layers

# How many positions a memory can go back if `activate_past_recording` has not been called.
_MOST_REMOVED = 256


class GateMemory:
    """One more layer of a cache of transformers, which holds what the systems remember.

    Beam search, a selection of rows, assisted decoding and resetting change all layers of a cache,
    and so this memory together with the keys and values.
    """

    # A cache asks all of its layers: what this one answers leaves the answer to the others.
    is_compileable = True
    is_sliding = False  # or as the first layer: masks are made by the first layer of their kind
    is_initialized = True
    is_croppable = True
    supports_early_init = False
    keys: None = None
    values: None = None

    def __init__(self) -> None:
        self.sites: dict[str, _SeesAll] = {}

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._each(lambda site: site.reorder_cache(beam_idx))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda site: site.batch_select_indices(indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda site: site.batch_repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        self._each(lambda site: site.activate_past_recording())

    def crop(self, tokens_to_remove: int) -> None:
        self._each(lambda site: site.crop(tokens_to_remove))

    def reset(self) -> None:
        self._each(lambda site: site.reset())

    def offload(self) -> None:
        """Leaves the memory where it is: it is small."""

    def prefetch(self) -> None:
        """Does nothing: the memory has not been offloaded."""

    def _each(self, change: Callable[[AttentionCache], Any]) -> None:
        for site in self.sites.values():
            change(site)


class _SeesAll(AttentionCache):
    """Warns where a system starts to remember beside keys and values that it has not seen.

    It is no error: a learned prefix of keys and values has nothing that a system could see.
    """

    missed: int | Tensor = 0

    def recall(self, name: str, last: int, like: Tensor, *, skip_empty: bool = False) -> Tensor:
        if name not in self.memory and self.missed:
            warnings.warn(
                f"{CACHE} holds {int(self.missed)} positions that the gates over heads "
                f"have not seen, since it was filled without them: gates that remember count from "
                f"here on, and give something else than for the whole text. Fill a new cache after "
                f"gate_heads, unless these are a learned prefix",
                stacklevel=2,
            )
        return super().recall(name, last, like, skip_empty=skip_empty)


class _FixedMemory(_SeesAll, FixedAttentionCache):
    """Keeps what is remembered in tensors that stay where they are."""


class _GrowingMemory(_SeesAll):
    """Keeps some past of a single sequence, for assisted decoding.

    That calls `activate_past_recording` while there is no memory in the cache yet.
    """

    def remember(self, name: str, steps: Tensor, new: int) -> None:
        asked = self.record_past
        self.record_past = asked or steps.size(0) == 1
        super().remember(name, steps, new)
        self.record_past = asked
        if not asked:
            steps = self.memory[name]
            before = self._last(name, steps[:, :-_MOST_REMOVED])
            self.memory[name] = torch.cat([before, steps[:, -_MOST_REMOVED:]], dim=1)


def memory_beside(cache: Cache | None, path: str, layers: int, new: int) -> AttentionCache | None:
    """What a system remembers beside a cache of transformers; None without cache.

    The cache has the keys and values of this call by now, of `new` positions, and `layers` layers.
    """
    if cache is None:
        return None
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache  # it grows with the decoder's queries
    memory = cache.layers[-1] if cache.layers else None
    if not isinstance(memory, GateMemory):
        # Layers of keys and values that are made when they are needed go before it.
        make_layers(cache, layers)
        memory = GateMemory()
        memory.is_sliding = getattr(cache.layers[0], "is_sliding", False)
        cache.layers.append(memory)
    if path not in memory.sites:
        room = cache.get_max_length(0) if cache.is_compileable else 0
        memory.sites[path] = _FixedMemory(room) if room > 0 else _GrowingMemory()
    site = memory.sites[path]
    if not site.memory and not torch.compiler.is_compiling():
        site.missed = cache.get_seq_length() - new
    return site
