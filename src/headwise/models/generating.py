"""`generate()` for models with a decoder, through a cache that all systems can use."""

from typing import Any, NoReturn

from torch import Tensor

from headwise.models.cache import DecodingCache
from headwise.models.own_cache import OwnCacheMixin
from headwise.transformers_internals import CACHE, GenerationHooks


class DecodingGenerationMixin(OwnCacheMixin, GenerationHooks):
    """Adds `generate()` to models with a decoder."""

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses what transformers' `generate_batch` and `cache_implementation="paged"` need."""
        raise NotImplementedError(
            f"{type(self).__name__} has no continuous batching, which keeps keys and values alone "
            f"in pages: call generate() with a batch of prompts, padded on the left"
        )

    def mask_for_generation(self, mask: Tensor, cache: DecodingCache, time: int) -> Tensor:
        return cache.of_all_positions(mask, time)

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
