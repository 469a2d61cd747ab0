"""The base of tasks on running text: language modelling and masked language modelling."""

import hashlib
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from headwise.data.division import PARTS
from headwise.data.running.corpus import (
    TextCorpus,
    digest_documents,
    lines_of,
    load_text_corpus,
)
from headwise.data.running.settings import PydocTopics, TextSettings
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.models.config import LanguageModelConfig
from headwise.recipes.settings import LanguageModelSettings, Recipe
from headwise.tasks.text_task import TextTask


class RunningTextRecipe(Recipe):
    """A recipe for running text: data, vocabulary and the length of blocks."""

    encoding_keys = ("tokenizer",)

    data: TextSettings = Field(
        default_factory=lambda: PydocTopics(), description="Which text the model learns from."
    )
    tokenizer: TextTokenizerSettings = Field(
        default_factory=lambda: TextTokenizerSettings(), description="The vocabulary."
    )
    block_length: int = Field(
        128,
        ge=2,
        le=10_000_000,
        description="Number of tokens that the model reads and predicts at once.",
    )


class RunningTextTask(TextTask):
    """The base of the tasks of language models: documents in blocks of tokens.

    Args:
        corpus: documents in three parts.
        tokenizer: tokenizer of their language.
        block_length: largest number of tokens of a block.
    """

    evaluation_keys: ClassVar[tuple[str, ...]] = ("data", "evaluation", "block_length")
    item_keys: ClassVar[tuple[str, ...]] = ("tokenizer", "block_length")

    def __init__(self, corpus: TextCorpus, tokenizer: TextTokenizer, block_length: int) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.block_length = block_length
        self.notes = corpus.notes | {"vocabulary": self.vocabulary()}

    @classmethod
    def prepare(cls, recipe: Any, folder: Path | None = None) -> Self:
        corpus = load_text_corpus(recipe.data)
        tokenizer = cls.saved_tokenizer(cls.encoding_folder(recipe, folder))
        if tokenizer is None:
            tokenizer = cls.new_tokenizer(
                recipe.tokenizer, corpus.digest, lambda: lines_of(corpus.train)
            )
        return cls.from_corpus(corpus, tokenizer, recipe)

    @classmethod
    def from_corpus(cls, corpus: TextCorpus, tokenizer: TextTokenizer, recipe: Any) -> Self:
        """Returns the task of a corpus with the other settings of its recipe."""
        return cls(corpus, tokenizer, recipe.block_length)

    def note_unknown(self, ids: Tensor) -> None:
        """Notes which share of the test part a vocabulary lacks, if it is not of bytes.

        Args:
            ids: all tokens of the test part.
        """
        words = ids[ids != self.tokenizer.eos_token_id]
        unknown = self.tokenizer.is_unknown(words)
        if self.tokenizer.has_words or unknown.any():
            share = unknown.float().mean().item()
            self.notes["vocabulary"] += f"; {share:.1%} of the test part's are <unk>"

    def digest(self) -> str:
        return self.corpus.digest

    def digest_of(self, part: str) -> str:
        """Returns a hash of the part's text, of the vocabulary and of the length of blocks.

        Blocks are the items of the scores, and the scores of masked language modelling are of
        tokens.
        """
        documents = getattr(self.corpus, part) if part in PARTS else self.corpus.tests[part]
        vocabulary = self.tokenizer.tokenizer.backend_tokenizer.to_str()
        items = (digest_documents(documents), str(self.block_length), vocabulary)
        return hashlib.sha256("\0".join(items).encode()).hexdigest()

    @classmethod
    def nominal_config(cls, recipe: Any) -> LanguageModelConfig:
        """Takes a vocabulary of its largest size; little text gives fewer words or subwords."""
        size = cls.nominal_vocab_size(recipe.tokenizer)
        return recipe.model.config(vocab_size=size, max_length=recipe.block_length)

    def model_config(self, settings: LanguageModelSettings) -> Any:
        return settings.config(max_length=self.block_length, **self.token_ids())
