"""The bases of tasks on text: a tokenizer that a run saves, and running text in blocks."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator
from torch import Tensor

from headwise.data.division import PARTS
from headwise.data.running.corpus import TextCorpus, load_text_corpus
from headwise.data.running.documents import lines_of
from headwise.data.running.settings import PydocTopics, TextSettings
from headwise.data.sources import CorpusError
from headwise.data.store import stored
from headwise.data.streams import Stream
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer, TranslationTokenizer
from headwise.models.config import LanguageModelConfig
from headwise.recipes.settings import LanguageModelSettings, Recipe
from headwise.tasks.positions import Positions
from headwise.tasks.significance import of_totals
from headwise.tasks.task import Items, Task
from headwise.training.streaming import StreamedItems


class StreamedRecipe(Recipe):
    """A recipe for texts whose training part may be a stream."""

    @model_validator(mode="after")
    def _check_streaming(self) -> Self:
        if not getattr(self.data, "streaming", False):
            return self
        if self.training.max_steps is None:
            raise ValueError(
                f"training.epochs is {self.training.epochs} and data.streaming is true, expected "
                f"training.max_steps in its place: the length of a stream is not known"
            )
        if self.training.loader_workers:
            raise ValueError(
                f"training.loader_workers is {self.training.loader_workers} and data.streaming is "
                f"true, expected 0: the process that trains reads the stream; leave it out"
            )
        return self


class TokenizerTask(Task):
    """A task whose tokenizer is learned from the training part, or ready-made.

    Attributes:
        corpus: the texts in three parts.
        tokenizer: the tokenizer, which is saved with the run.
        tokenizer_class: the class of the tokenizer.
        load: loads the texts that the settings `data` of a recipe name.
    """

    saved = (TOKENIZER,)
    tokenizer_class: ClassVar[type[TextTokenizer] | type[TranslationTokenizer]]
    load: ClassVar[Callable[..., Any]]
    corpus: Any
    tokenizer: Any

    @classmethod
    def ready_made(cls, settings: Any) -> Any:
        """Loads the tokenizer that the settings name."""
        return cls.tokenizer_class.ready_made(settings)

    @staticmethod
    @abstractmethod
    def texts_of(corpus: Any) -> Iterable[Any]:
        """Returns the texts from which the tokenizer is learned."""

    @classmethod
    @abstractmethod
    def from_corpus(cls, corpus: Any, tokenizer: Any, recipe: Any) -> Self:
        """Returns the task on a corpus, with its tokenizer and the settings of the recipe."""

    @staticmethod
    def tokenizer_settings(recipe: Any) -> Any:
        """Returns the settings of the tokenizer."""
        return recipe.tokenizer

    @classmethod
    def prepare(cls, recipe: Any, folder: Path | None = None) -> Self:
        corpus = cls.load(recipe.data)
        folder = cls.encoding_folder(recipe, folder)
        if folder is not None and (folder / TOKENIZER).is_dir():
            return cls.from_corpus(corpus, cls.tokenizer_class.load(folder / TOKENIZER), recipe)
        settings = cls.tokenizer_settings(recipe)
        if settings.pretrained is not None:
            return cls.from_corpus(corpus, cls.ready_made(settings), recipe)

        def learn(folder: Path) -> None:
            train: Callable[[Any, Any], Any] = cls.tokenizer_class.train
            texts = cls.texts_of(corpus)
            if isinstance(corpus.train, Stream):
                texts = list(islice(texts, settings.sample_rows))
                if not any(texts):
                    raise CorpusError(
                        f"{corpus.train.origin}: there is no text. Name a file or split that has "
                        f"text."
                    )
            train(texts, settings).save(folder / TOKENIZER)

        made_of = [corpus.digest, settings.model_dump_json()]
        if isinstance(corpus.train, Stream):  # its digest does not tell when its files were changed
            made_of.append(corpus.train.identity)
        learned = stored("tokenizers", made_of, learn)
        return cls.from_corpus(corpus, cls.tokenizer_class.load(learned / TOKENIZER), recipe)

    def encode_parts(self, make: Callable[[Any], Any]) -> None:
        """Sets the items of each part and of each further test set: `make` makes them of texts."""
        self.train = streamed(self.corpus.train, make)
        self.validation, self.test = make(self.corpus.validation), make(self.corpus.test)
        self.tests = {name: make(texts) for name, texts in self.corpus.tests.items()}

    @property
    def is_streamed(self) -> bool:
        """Whether the training part is a stream: how many items it has is then unknown."""
        return isinstance(self.corpus.train, Stream)

    def part(self, name: str) -> Items:
        found = super().part(name)
        if isinstance(found, StreamedItems):
            raise ValueError(
                f"the {name} part is a stream (data.streaming), expected a part that is stored, "
                f"such as validation: a stream is only trained on"
            )
        return found

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / TOKENIZER)

    def encoding(self) -> str:
        return str(self.tokenizer.state)

    @classmethod
    def encoding_of(cls, run: Path) -> str:
        return cls.tokenizer_class.load(run / TOKENIZER).state

    def digest(self) -> str:
        return str(self.corpus.digest)

    def digest_of(self, part: str) -> str:
        items: Any = self.part(part)
        return str(items.digest())


def streamed(texts: Any, make: Callable[[Any], Any]) -> Any:
    """Returns what `make` makes of texts; of a stream, the items that are made as it is read."""
    if isinstance(texts, Stream):
        return StreamedItems(texts.rows(), make, texts.settings.shuffle_rows)
    return make(texts)


class TextTask(TokenizerTask):
    """A task with one tokenizer for all of its texts."""

    tokenizer_class = TextTokenizer
    tokenizer: TextTokenizer

    @classmethod
    def nominal_vocab_size(cls, settings: TextTokenizerSettings) -> int:
        """Returns the size of a ready-made vocabulary, or the largest size of a learned one."""
        if settings.pretrained is not None:
            return int(cls.ready_made(settings).vocab_size)
        return settings.vocab_size

    def token_ids(self) -> dict[str, int]:
        """Returns the arguments of a model's configuration that describe the vocabulary."""
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "pad_token_id": self.tokenizer.pad_token_id,
            "bos_token_id": self.tokenizer.bos_token_id,
            "eos_token_id": self.tokenizer.eos_token_id,
        }

    @property
    def unit(self) -> str:
        """What the tokens are, in the plural: words or subwords."""
        return "words" if self.tokenizer.has_words else "subwords"

    def tokens(
        self, input_ids: Tensor, classes: Mapping[str, tuple[Tensor, list[str]]] | None = None
    ) -> Positions:
        """Returns the token at each position of texts; `classes` as in `Positions.of_tokens`."""
        word = self.unit.removesuffix("s")
        return Positions.of_tokens(input_ids, self.tokenizer.names, word, classes)

    def vocabulary(self) -> str:
        """Returns a description of the vocabulary."""
        return f"{self.tokenizer.vocab_size:,} {self.unit}"


# --- running text -----------------------------------------------------------------------------


class RunningTextRecipe(StreamedRecipe):
    """A recipe for running text: data, vocabulary and the length of blocks."""

    encoding_keys = ("tokenizer",)

    data: TextSettings = Field(default_factory=lambda: PydocTopics())
    """Which text the model learns from."""
    tokenizer: TextTokenizerSettings = Field(default_factory=lambda: TextTokenizerSettings())
    """The vocabulary."""
    block_length: int = Field(128, ge=2, le=10_000_000)
    """Number of tokens that the model reads and predicts at once."""


class RunningTextTask(TextTask):
    """The base of the tasks of language models: documents in blocks of tokens."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("data", "evaluation", "block_length")
    item_keys: ClassVar[tuple[str, ...]] = ("tokenizer", "block_length")
    load = staticmethod(load_text_corpus)

    def __init__(self, corpus: TextCorpus, tokenizer: TextTokenizer, block_length: int) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.block_length = block_length
        self.notes = corpus.notes | {"vocabulary": self.vocabulary()}

    @staticmethod
    def texts_of(corpus: TextCorpus) -> Iterable[str]:
        return lines_of(corpus.train)

    @classmethod
    def from_corpus(cls, corpus: TextCorpus, tokenizer: TextTokenizer, recipe: Any) -> Self:
        return cls(corpus, tokenizer, recipe.block_length)

    def note_unknown(self, ids: Tensor) -> None:
        """Notes the share of the tokens of the test part that a vocabulary without bytes lacks."""
        words = ids[ids != self.tokenizer.eos_token_id]
        unknown = self.tokenizer.is_unknown(words)
        if self.tokenizer.has_words or unknown.any():
            share = unknown.float().mean().item()
            self.notes["vocabulary"] += f"; {share:.1%} of the test part's are <unk>"

    def digest_of(self, part: str) -> str:
        """Returns a hash of the part's text, of the vocabulary and of the length of blocks.

        Blocks are the items of the scores, and the scores of masked language modelling are of
        tokens.
        """
        documents: Any = getattr(self.corpus, part) if part in PARTS else self.corpus.tests[part]
        items = (documents.digest, str(self.block_length), self.tokenizer.state)
        return hashlib.sha256("\0".join(items).encode()).hexdigest()

    @classmethod
    def nominal_config(cls, recipe: Any) -> LanguageModelConfig:
        """Takes a vocabulary of its largest size; little text gives fewer words or subwords."""
        size = cls.nominal_vocab_size(recipe.tokenizer)
        return recipe.model.config(vocab_size=size, max_length=recipe.block_length)

    def model_config(self, settings: LanguageModelSettings) -> Any:
        return settings.config(max_length=self.block_length, **self.token_ids())


# exp(nats / count), of the sums of both; finite for a diverged model too, and NaN for no tokens.
PERPLEXITY = of_totals(
    lambda totals: math.exp(min(totals[0] / totals[1], 700.0)) if totals[1] else math.nan
)
