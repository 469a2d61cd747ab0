"""The cache that a model with a decoder reads and writes: a new one, or what a caller gave."""

from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache

from headwise.heads.cache import AttentionCache
from headwise.models.cache import DecodingCache
from headwise.models.config import TransformerConfig
from headwise.models.sites import attention_sites
from headwise.transformers_internals import CACHE


class OwnCacheMixin:
    """Adds `new_cache` to models with a decoder, and takes the caches of transformers."""

    config: TransformerConfig

    def new_cache(self, max_length: int | None = None) -> DecodingCache:
        """Returns an empty cache for the decoder.

        Args:
            max_length: how many positions there is room for, in tensors of a fixed size that a
                compiled model can change in place; None for a cache that grows.
        """
        depths = self.config.depths()
        return DecodingCache(
            depths["decoder_self"],
            cross_attention=depths.get("decoder_cross", 0) > 0,
            max_length=max_length,
        )

    def cache_of_call(self, given: Cache | None, use_cache: bool | None) -> DecodingCache | None:
        """Returns the cache for one call of the model: `own_cache`, or a new one if `use_cache`."""
        if given is not None:
            return self.own_cache(given)
        return self.new_cache() if use_cache else None

    def own_cache(self, given: Cache) -> DecodingCache:
        """Returns a cache as this model needs it.

        Args:
            given: one of `new_cache`, or a `DynamicCache` or `StaticCache` of transformers, alone
                or in an `EncoderDecoderCache`. It is empty or holds the keys and values of a
                prefix, as in prefix tuning. From then on it has the layers of what is returned, so
                that it can be given again.

        Raises:
            TypeError: a cache of another kind.
            ValueError: a prefix whose size does not fit the model.
        """
        if isinstance(given, DecodingCache):
            return given
        of_self = given.self_attention_cache if isinstance(given, EncoderDecoderCache) else given
        if isinstance(of_self, DecodingCache):
            return of_self
        if type(of_self) not in (DynamicCache, StaticCache) or of_self.offloading:
            raise TypeError(
                f"{CACHE} is a {type(of_self).__name__}, expected what "
                f"{type(self).__name__}.new_cache() returns, or an empty DynamicCache or "
                f"StaticCache: the systems of headwise keep more than keys and values in a cache"
            )
        depth = self.config.depths()["decoder_self"]
        if of_self.layers and all(isinstance(each, AttentionCache) for each in of_self.layers):
            return DecodingCache.of_layers(of_self.layers, depth)
        fixed = type(of_self) is StaticCache
        cache = self.new_cache(max_length=of_self.get_max_length() if fixed else None)
        if of_self.get_seq_length():
            self._take_prefix(cache, of_self)
        if of_self is given:
            given.layers = cache.layers
        else:
            given.self_attention_cache = cache
        return cache

    def _take_prefix(self, cache: DecodingCache, given: Cache) -> None:
        """Fill an empty cache with keys and values of positions that the model has not read."""
        count = len(cache.self_attention)
        if len(given.layers) != count or type(given) is not DynamicCache:
            raise ValueError(
                f"{CACHE} is a {type(given).__name__} that holds {len(given.layers)} "
                f"layers, expected a DynamicCache of {count}: in prefix tuning, num_layers is that "
                f"of the decoder"
            )
        assert isinstance(self, nn.Module)
        modules = [each.module for each in attention_sites(self) if each.site == "decoder_self"]
        for layer, (own, prefix) in enumerate(zip(cache.self_attention, given.layers, strict=True)):
            size = (prefix.keys.size(1), prefix.keys.size(3))
            expected = modules[layer].key_size()
            if expected is not None and size != expected:
                raise ValueError(
                    f"{CACHE} has heads and dimensions {size} in layer {layer}, expected "
                    f"{expected}, those of its {type(modules[layer]).__name__}; in prefix tuning, "
                    f"num_attention_heads is the first of these numbers and token_dim the product "
                    f"of both"
                )
            own.extend(prefix.keys, prefix.values)
