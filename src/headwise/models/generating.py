"""`generate()` for models with a decoder, through a cache that all systems can use."""

from typing import Any, NoReturn

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.generation import GenerationMixin

from headwise.heads.cache import AttentionCache
from headwise.models.cache import DecodingCache
from headwise.models.config import TransformerConfig
from headwise.models.sites import attention_sites


class DecodingGenerationMixin(GenerationMixin):
    """Adds `generate()` to models with a decoder."""

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

    def own_cache(self, given: Cache) -> DecodingCache:
        """Returns a cache as this model needs it.

        Args:
            given: one of `new_cache`, or a `DynamicCache` or `StaticCache` of transformers, alone
                or in an `EncoderDecoderCache`. It is empty or holds the keys and values of a
                prefix, as in prefix tuning. From then on it has the layers of what is returned, so
                that it can be given again.

        Raises:
            TypeError: no such cache.
            ValueError: a prefix whose size does not fit the model.
        """
        if isinstance(given, DecodingCache):
            return given
        of_self = given.self_attention_cache if isinstance(given, EncoderDecoderCache) else given
        if isinstance(of_self, DecodingCache):
            return of_self
        if type(of_self) not in (DynamicCache, StaticCache) or of_self.offloading:
            raise TypeError(
                f"past_key_values is a {type(of_self).__name__}, expected what "
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

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses what transformers' `generate_batch` and `cache_implementation="paged"` need."""
        raise NotImplementedError(
            f"{type(self).__name__} has no continuous batching, which keeps keys and values alone "
            f"in pages: call generate() with a batch of prompts, padded on the left"
        )

    def create_masks_for_generate(
        self, *, attention_mask: Tensor | None, past_key_values: DecodingCache, **inputs: Any
    ) -> Tensor | None:
        """As `generate()` calls it for caches of a fixed size: a mask of a fixed size too."""
        if attention_mask is None:
            return None
        return past_key_values.of_all_positions(attention_mask, inputs["inputs_embeds"].size(1))

    def _take_prefix(self, cache: DecodingCache, given: Cache) -> None:
        """Fill an empty cache with keys and values of positions that the model has not read."""
        count = len(cache.self_attention)
        if len(given.layers) != count or type(given) is not DynamicCache:
            raise ValueError(
                f"past_key_values is a {type(given).__name__} that holds {len(given.layers)} "
                f"layers, expected a DynamicCache of {count}: in prefix tuning, num_layers is that "
                f"of the decoder"
            )
        modules = [each.module for each in attention_sites(self) if each.site == "decoder_self"]
        for layer, (own, prefix) in enumerate(zip(cache.self_attention, given.layers, strict=True)):
            size = (prefix.keys.size(1), prefix.keys.size(3))
            expected = modules[layer].key_size()
            if expected is not None and size != expected:
                raise ValueError(
                    f"past_key_values has heads and dimensions {size} in layer {layer}, expected "
                    f"{expected}, those of its {type(modules[layer]).__name__}; in prefix tuning, "
                    f"num_attention_heads is the first of these numbers and token_dim the product "
                    f"of both"
                )
            own.extend(prefix.keys, prefix.values)

    def _prepare_cache_for_generation(  # type: ignore[no-untyped-def]
        self, generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
    ) -> None:
        """Gives `generate()` headwise's cache; its own would hold keys and values only."""
        kind, given = generation_config.cache_implementation, model_kwargs.get("past_key_values")
        if kind not in (None, "dynamic", "static"):
            raise ValueError(
                f"cache_implementation is {kind!r}, expected 'dynamic' or 'static': the systems of "
                f"headwise keep more than keys and values in their cache"
            )
        if given is not None:
            if kind is not None:
                raise ValueError(
                    f"past_key_values is given and cache_implementation is {kind!r}, expected one "
                    f"of them: a cache is of its own kind"
                )
            model_kwargs["past_key_values"] = self.own_cache(given)
            return
        if generation_config.use_cache is False:
            return
        length = None
        if kind == "static":
            self._check_positions(max_cache_length, model_kwargs)
            length = max(max_cache_length, generation_config.max_cache_len or 0)
        cache = model_kwargs["past_key_values"] = self.new_cache(length)
        if generation_config.is_assistant:
            cache.activate_past_recording()  # the other model refuses some of its tokens

    def _check_positions(self, length: int, model_kwargs: dict[str, Any]) -> None:
        """A cache of a fixed size cannot be asked at each step how much of it is filled."""
        name = "decoder_attention_mask" if self.config.is_encoder_decoder else "attention_mask"
        mask = model_kwargs.get(name)
        if mask is not None:
            length -= int((mask == 0).sum(1).min())
        limit = self.config.max_positions
        if limit is not None and length > limit:
            raise ValueError(
                f"a sequence is to have {length} tokens, expected at most {limit}: the model has "
                f"that many learned positions (max_positions); set a smaller max_new_tokens"
            )

    def _prepare_generated_length(  # type: ignore[no-untyped-def]
        self, generation_config, has_default_max_length, **others
    ):
        """Lets the length that `generate()` is given win over the other one of the model's own.

        transformers takes `max_new_tokens` if there are both, and warns.
        """
        own = self.generation_config
        if generation_config.max_new_tokens is not None and not has_default_max_length:
            if generation_config.max_length == own.max_length:
                generation_config.max_length = None
            elif generation_config.max_new_tokens == own.max_new_tokens:
                generation_config.max_new_tokens = None
        return super()._prepare_generated_length(
            generation_config, has_default_max_length, **others
        )
