"""The tokenizer of language models whose texts are lines."""

from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise.models.causal_lm import CausalLMConfig


class LineTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose end token is the line end, which is a part of texts.

    `AutoTokenizer` finds it in the folder of a language model if headwise is imported.
    """

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        if skip_special_tokens:  # line ends are among them and stay
            left_out = set(self.all_special_ids) - {self.eos_token_id}
            ids = [token_ids] if isinstance(token_ids, int) else token_ids
            token_ids = [token for token in ids if token not in left_out]
        return super()._decode(token_ids, skip_special_tokens=False, **options)


AutoTokenizer.register(CausalLMConfig, LineTokenizer)
