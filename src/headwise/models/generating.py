"""`generate()` for models with a decoder, through a cache that all systems can use."""

from typing import Any, NoReturn

from torch import Tensor
from transformers.generation import GenerationMixin

from headwise.models.cache import DecodingCache
from headwise.models.own_cache import OwnCacheMixin


class DecodingGenerationMixin(OwnCacheMixin, GenerationMixin):
    """Adds `generate()` to models with a decoder."""

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
