"""What a decoder remembers while it generates."""

from transformers.cache_utils import Cache

from headwise.heads.cache import AttentionCache


class DecodingCache(Cache):
    """One `AttentionCache` for each attention of a decoder.

    `generate()` reorders it between the steps of a beam search, and with the keys and values
    whatever else a system remembers, such as a running mean of its inputs.

    Args:
        num_layers: layers of the decoder.
        cross_attention: whether each has a cross-attention, whose keys are computed once.
    """

    def __init__(self, num_layers: int, *, cross_attention: bool) -> None:
        self.self_attention = [AttentionCache() for _ in range(num_layers)]
        count = num_layers if cross_attention else 0
        self.cross_attention = [AttentionCache(static=True) for _ in range(count)]
        super().__init__(layers=[*self.self_attention, *self.cross_attention])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many positions have been decoded."""
        return self.self_attention[layer_idx].get_seq_length()
