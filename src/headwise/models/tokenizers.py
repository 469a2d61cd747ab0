"""The tokenizers of language models, which `AutoTokenizer` loads.

Importing this module registers them with transformers.
"""

import json
from typing import Any

import tokenizers
import transformers as hf

from headwise.models.config import CausalLMConfig, MaskedLMConfig


class _MarkedTokenizer(hf.PreTrainedTokenizerFast):
    """A tokenizer that finds one of its special tokens in texts; the others are text there.

    `split_special_tokens` makes all of them text, so that one must be special to transformers
    alone.
    """

    found_in_texts: str

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "split_special_tokens": True})
        mark = getattr(self, self.found_in_texts)
        state = json.loads(self.backend_tokenizer.to_str())
        for token in state["added_tokens"]:
            token["special"] = token["content"] != mark
        self._tokenizer: Any = tokenizers.Tokenizer.from_str(json.dumps(state))


class LineTokenizer(_MarkedTokenizer):
    """The tokenizer of a language model: its end token is the line end, which divides texts."""

    found_in_texts = "eos_token"

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        if skip_special_tokens:  # line ends are among them and stay
            left_out = set(self.all_special_ids) - {self.eos_token_id}
            ids = [token_ids] if isinstance(token_ids, int) else token_ids
            token_ids = [token for token in ids if token not in left_out]
        return super()._decode(token_ids, skip_special_tokens=False, **options)


class MaskTokenizer(_MarkedTokenizer):
    """The tokenizer of a masked language model: the mask in a text hides a token."""

    found_in_texts = "mask_token"


hf.AutoTokenizer.register(CausalLMConfig, LineTokenizer)
hf.AutoTokenizer.register(MaskedLMConfig, MaskTokenizer)
