"""What a decoder remembers while it generates."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from headwise.heads.cache import AttentionCache
from headwise.heads.fixed_cache import FixedAttentionCache
from headwise.transformers_internals import cache_layer

cache_layer(AttentionCache)


class DecodingCache(Cache):
    """One `AttentionCache` for each attention of a decoder.

    `generate()` reorders it between the steps of a beam search, and with the keys and values
    whatever else a system remembers, such as a running mean of its inputs.

    Args:
        num_layers: layers of the decoder.
        cross_attention: whether each has a cross-attention, whose keys are computed once.
        max_length: how many positions there is room for, in tensors of a fixed size that a compiled
            model can change in place; None for a cache that grows.
    """

    def __init__(
        self, num_layers: int, *, cross_attention: bool, max_length: int | None = None
    ) -> None:
        def new(static: bool) -> AttentionCache:
            if max_length is None:
                return AttentionCache(static=static)
            return FixedAttentionCache(max_length, static=static)

        self.self_attention = [new(False) for _ in range(num_layers)]
        count = num_layers if cross_attention else 0
        self.cross_attention = [new(True) for _ in range(count)]
        super().__init__(layers=[*self.self_attention, *self.cross_attention])

    @classmethod
    def of_layers(cls, layers: Sequence[AttentionCache], num_layers: int) -> "DecodingCache":
        """Returns a cache of existing layers: those of self-attention, then of cross-attention."""
        cache = cls(0, cross_attention=False)
        cache.self_attention = list(layers[:num_layers])
        cache.cross_attention = list(layers[num_layers:])
        cache.layers = list(layers)
        return cache

    @property
    def max_cache_len(self) -> int:
        """The same as `get_max_length`, by the name that peft asks for."""
        return self.get_max_length()

    def get_seq_length(self, layer_idx: int = 0) -> int | Tensor:
        """How many positions have been decoded; a tensor if the cache is of a fixed size."""
        return self.self_attention[layer_idx].get_seq_length()

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """How many positions the cache can hold; -1 if it grows. It is the same in all layers."""
        return self.self_attention[0].get_max_length()

    def of_all_positions(self, mask: Tensor, time: int) -> Tensor:
        """Returns a mask of tokens or of padding as the attentions of this call need it.

        Args:
            mask: of cached positions and this call's, `(batch, cached + time)`.
            time: how many positions this call has.

        Returns:
            The same, or, if the cache is of a fixed size and is not empty, `(batch, max_length)`.
        """
        first = self.self_attention[0]
        if not isinstance(first, FixedAttentionCache):
            return mask
        if not first.is_filled:
            return mask[:, :time]
        # Nothing attends to positions to come, whatever the mask says.
        room = first.max_length - mask.size(1)
        return F.pad(mask, (0, room)) if room else mask

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last positions.

        Args:
            tokens_to_remove: how many, as a negative number. A positive one is how many positions
                are left, as in transformers 4.

        Raises:
            ValueError: some system's memory does not go back so far; nothing is changed then. Call
                `activate_past_recording()` before these positions are computed.
        """
        if tokens_to_remove > 0:
            tokens_to_remove = min(0, tokens_to_remove - int(self.get_seq_length()))
        for layer in self.layers:
            layer.check_crop(tokens_to_remove)
        super().crop(tokens_to_remove)
