"""The tokenizer of language models whose texts are lines."""

from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise.models.causal_lm import CausalLMConfig


class LineTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose only special token is the line end, which is a part of texts.

    `AutoTokenizer` finds it in the folder of a language model if headwise is imported.
    """

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        # transformers would leave line ends out, since tools count them among special tokens.
        return super()._decode(token_ids, skip_special_tokens=False, **options)


AutoTokenizer.register(CausalLMConfig, LineTokenizer)
