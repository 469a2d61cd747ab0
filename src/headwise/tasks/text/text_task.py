"""What tasks on text of one language share: a tokenizer that a run keeps, and running text."""

import math
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from headwise.models.config import LanguageModelConfig
from headwise.recipe.settings import LanguageModelSettings, Recipe
from headwise.tasks.task import Task
from headwise.tasks.text.texts import PydocTopics, Texts, TextSettings, lines_of, load_texts
from headwise.tasks.text.tokenization import TOKENIZER, TextTokenizer, TextTokenizerSettings


class TextTask(Task):
    """A task whose texts one tokenizer encodes.

    Attributes:
        tokenizer: learned from the training part, and kept by the run.
    """

    saved = (TOKENIZER,)
    tokenizer: TextTokenizer

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / TOKENIZER)

    @staticmethod
    def kept_tokenizer(folder: Path | None) -> TextTokenizer | None:
        """The tokenizer that `save` has written to the folder of a run; None before that."""
        if folder is None or not (folder / TOKENIZER).is_dir():
            return None
        return TextTokenizer.load(folder / TOKENIZER)

    def token_ids(self) -> dict[str, int]:
        """What a model's configuration has to know of the vocabulary."""
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "pad_token_id": self.tokenizer.pad_token_id,
            "bos_token_id": self.tokenizer.bos_token_id,
            "eos_token_id": self.tokenizer.eos_token_id,
        }

    @property
    def unit(self) -> str:
        """What a token is."""
        return "words" if self.tokenizer.has_words else "subwords"

    def vocabulary(self) -> str:
        """The vocabulary in words."""
        return f"{self.tokenizer.vocab_size:,} {self.unit}"


class RunningTextRecipe(Recipe):
    """Which text to model, in what pieces."""

    data: TextSettings = Field(default_factory=lambda: PydocTopics(), description="the text")
    tokenizer: TextTokenizerSettings = Field(
        default_factory=lambda: TextTokenizerSettings(), description="the vocabulary"
    )
    block_length: int = Field(
        128, ge=2, description="tokens that the model sees and predicts at once"
    )


class RunningTextTask(TextTask):
    """A language model's task: documents, cut or packed into blocks of tokens.

    Args:
        texts: documents in three parts.
        tokenizer: of their language.
        block_length: most tokens of a block.
    """

    def __init__(self, texts: Texts, tokenizer: TextTokenizer, block_length: int) -> None:
        self.texts = texts
        self.tokenizer = tokenizer
        self.block_length = block_length
        self.notes = texts.notes | {"vocabulary": self.vocabulary()}

    @classmethod
    def prepare(cls, recipe: Any, folder: Path | None = None) -> Self:
        texts = load_texts(recipe.data)
        tokenizer = cls.kept_tokenizer(folder)
        if tokenizer is None:
            tokenizer = TextTokenizer.train(lines_of(texts.train), recipe.tokenizer)
        return cls.from_texts(texts, tokenizer, recipe)

    @classmethod
    def from_texts(cls, texts: Texts, tokenizer: TextTokenizer, recipe: Any) -> Self:
        """The task with what else its recipe says."""
        return cls(texts, tokenizer, recipe.block_length)

    def note_unknown(self, ids: Tensor) -> None:
        """Note how much of the test part, whose tokens these are, no vocabulary of words has."""
        if self.tokenizer.has_words:
            words = ids[ids != self.tokenizer.eos_token_id]
            share = (words == self.tokenizer.unk_token_id).float().mean().item()
            self.notes["vocabulary"] += f"; {share:.1%} of the test part's are <unk>"

    def digest(self) -> str:
        return self.texts.digest()

    @classmethod
    def nominal_config(cls, recipe: Any) -> LanguageModelConfig:
        """With a vocabulary as large as it may be; little text gives fewer words or subwords."""
        return recipe.model.config(
            vocab_size=recipe.tokenizer.vocab_size, max_length=recipe.block_length
        )

    def model_config(self, settings: LanguageModelSettings) -> Any:
        return settings.config(max_length=self.block_length, **self.token_ids())


def perplexity(nats: float, count: float) -> float:
    """exp(nats / count), a number even where a model has diverged; NaN where there is nothing.

    >>> perplexity(0.0, 0), perplexity(float("inf"), 1) < float("inf")
    (nan, True)
    """
    return math.exp(min(nats / count, 700.0)) if count else math.nan
