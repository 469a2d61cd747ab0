"""What a decoder remembers while it generates, and `generate()` with it."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache

from headwise.heads.cache import AttentionCache, FixedAttentionCache
from headwise.models.config import TransformerConfig
from headwise.models.sites import attention_sites
from headwise.transformers_internals import CACHE, GenerationHooks, cache_layer

cache_layer(AttentionCache)


class DecodingCache(Cache):
    """One `AttentionCache` for each attention of a decoder.

    `generate()` reorders it between the steps of a beam search, and with the keys and values
    whatever else a system remembers, such as a running mean of its inputs. The keys of
    cross-attention, if there is any, are computed once.
    """

    def __init__(
        self,
        self_attention: Sequence[AttentionCache],
        cross_attention: Sequence[AttentionCache] = (),
    ) -> None:
        self.self_attention, self.cross_attention = list(self_attention), list(cross_attention)
        super().__init__(layers=[*self_attention, *cross_attention])

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

    def takes_whole(self, mask: Tensor | None) -> bool:
        """Whether a mask is of all positions that a cache of a fixed size can hold."""
        return isinstance(mask, Tensor) and mask.shape[-1:] == (self.get_max_length(),)

    def of_all_positions(self, mask: Tensor, time: int) -> Tensor:
        """A mask of tokens or of padding as the attentions of this call need it.

        `mask` is of cached positions and of the `time` of this call. If the cache has a fixed size
        and is not empty, it gets as many positions as the cache.
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
            tokens_to_remove: how many, as a negative number; a positive one is how many are left.

        Raises:
            ValueError: some system's memory does not go back so far; nothing is changed then. Call
                `activate_past_recording()` before these positions are computed.
        """
        if tokens_to_remove > 0:
            tokens_to_remove = min(0, tokens_to_remove - int(self.get_seq_length()))
        for layer in self.layers:
            layer.check_crop(tokens_to_remove)
        super().crop(tokens_to_remove)


class OwnCacheMixin:
    """Adds `new_cache` to models with a decoder, and takes the caches of transformers."""

    config: TransformerConfig

    def new_cache(self, max_length: int | None = None) -> DecodingCache:
        """Returns an empty cache for the decoder.

        With `max_length` it has room for so many positions, in tensors of a fixed size that a
        compiled model can change in place; else it grows.
        """

        def layers(site: str, static: bool) -> list[AttentionCache]:
            count = self.config.depths().get(site, 0)
            if max_length is None:
                return [AttentionCache(static=static) for _ in range(count)]
            return [FixedAttentionCache(max_length, static=static) for _ in range(count)]

        return DecodingCache(layers("decoder_self", False), layers("decoder_cross", True))

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
            return DecodingCache(of_self.layers[:depth], of_self.layers[depth:])
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


class DecodingGenerationMixin(OwnCacheMixin, GenerationHooks):
    """Adds `generate()` to models with a decoder, through a cache that all systems can use."""

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses what transformers' `generate_batch` and `cache_implementation="paged"` need."""
        raise NotImplementedError(
            f"{type(self).__name__} has no continuous batching, which keeps keys and values alone "
            f"in pages: call generate() with a batch of prompts, padded on the left"
        )

    def cache_for_generation(self, settings: Any, inputs: dict[str, Any], length: int) -> None:
        """Gives `generate()` headwise's cache; its own would hold keys and values only."""
        kind, given = settings.cache_implementation, inputs.get(CACHE)
        if kind not in (None, "dynamic", "static"):
            raise ValueError(
                f"cache_implementation is {kind!r}, expected 'dynamic' or 'static': the systems of "
                f"headwise keep more than keys and values in their cache"
            )
        if given is not None:
            if kind is not None:
                raise ValueError(
                    f"{CACHE} is given and cache_implementation is {kind!r}, expected one "
                    f"of them: a cache is of its own kind"
                )
            inputs[CACHE] = self.own_cache(given)
            return
        if settings.use_cache is False:
            return
        room = None
        if kind == "static":
            self._check_positions(length, inputs)
            room = max(length, settings.max_cache_len or 0)
        cache = inputs[CACHE] = self.new_cache(room)
        if settings.is_assistant:
            cache.activate_past_recording()  # the other model refuses some of its tokens

    def _check_positions(self, length: int, inputs: dict[str, Any]) -> None:
        """A cache of a fixed size cannot be asked at each step how much of it is filled."""
        name = "decoder_attention_mask" if self.config.is_encoder_decoder else "attention_mask"
        mask = inputs.get(name)
        if mask is not None:
            length -= int((mask == 0).sum(1).min())
        limit = self.config.max_positions
        if limit is not None and length > limit:
            raise ValueError(
                f"a sequence is to have {length} tokens, expected at most {limit}: the model has "
                f"that many learned positions (max_positions); set a smaller max_new_tokens"
            )

    def settle_length(self, settings: Any, has_default_max_length: bool) -> None:
        """Lets the length that `generate()` is given win over the other one of the model's own.

        transformers takes `max_new_tokens` if there are both, and warns.
        """
        own = self.generation_config
        if settings.max_new_tokens is not None and not has_default_max_length:
            if settings.max_length == own.max_length:
                settings.max_length = None
            elif settings.max_new_tokens == own.max_new_tokens:
                settings.max_new_tokens = None
