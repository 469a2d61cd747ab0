"""Folders of tiny models with their tokenizers, as runs leave them, but without training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from compatible import tiny_model
from transformers import PreTrainedTokenizerFast

from headwise.data.tokenizers.for_models import (
    classifier_tokenizer,
    language_model_tokenizer,
    masked_model_tokenizer,
)
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.models.base import HeadwiseModel

LINES = ["a small file opens", "close the small file", "the file opens", "a file", "close it"]
LONGEST = 32
FOR_TOOLS: dict[str, Callable[[PreTrainedTokenizerFast, int], PreTrainedTokenizerFast]] = {
    "causal": language_model_tokenizer,
    "masked": masked_model_tokenizer,
    "classifier": classifier_tokenizer,
}


class Saved(NamedTuple):
    """A model in a folder.

    Attributes:
        folder: of the model.
        model: the same model, to compute what is expected.
        tokenizer: the tokenizer of its run.
    """

    folder: str
    model: HeadwiseModel
    tokenizer: TextTokenizer


def saved(kind: str, system: str, folder: Path, **options: Any) -> Saved:
    """Saves a tiny model, a key of `CONFIGS`, with its tokenizer."""
    settings = TextTokenizerSettings(type="word", vocab_size=40, min_frequency=1)
    tokenizer = TextTokenizer.train(LINES, settings)
    model = tiny_model(kind, system, vocab_size=tokenizer.vocab_size, **options)
    if model.can_generate():  # special tokens, which no trained model writes
        model.generation_config.suppress_tokens = [0, 1, 3, 4]
    model.save_pretrained(folder)
    FOR_TOOLS[kind](tokenizer.tokenizer, LONGEST).save_pretrained(folder)
    return Saved(str(folder), model, tokenizer)
