"""The base of tasks on text of one language: a tokenizer that a run saves."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from headwise.data.store import stored
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer
from headwise.tasks.positions import Positions
from headwise.tasks.task import Task


class TextTask(Task):
    """A task with one tokenizer for all of its texts.

    Attributes:
        tokenizer: tokenizer that is learned from the training part, or ready-made, and saved with
            the run.
        needs_mask: whether the tokenizer needs a mask.
    """

    saved = (TOKENIZER,)
    needs_mask: ClassVar[bool] = False
    tokenizer: TextTokenizer

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / TOKENIZER)

    @staticmethod
    def saved_tokenizer(folder: Path | None) -> TextTokenizer | None:
        """Loads the tokenizer that `save` has written to the folder of a run; None before that."""
        if folder is None or not (folder / TOKENIZER).is_dir():
            return None
        return TextTokenizer.load(folder / TOKENIZER)

    def encoding(self) -> str:
        return self.tokenizer.tokenizer.backend_tokenizer.to_str()

    @classmethod
    def encoding_of(cls, run: Path) -> str:
        return TextTokenizer.load(run / TOKENIZER).tokenizer.backend_tokenizer.to_str()

    @classmethod
    def new_tokenizer(
        cls, settings: TextTokenizerSettings, digest: str, lines: Callable[[], Iterable[str]]
    ) -> TextTokenizer:
        """Returns the tokenizer that the settings name, or one that is learned from lines.

        Args:
            settings: of the tokenizer.
            digest: a hash of the lines, by which a tokenizer is found that was learned before.
            lines: returns the lines.
        """
        if settings.pretrained is not None:
            return TextTokenizer.ready_made(settings, mask=cls.needs_mask)

        def learn(folder: Path) -> None:
            TextTokenizer.train(lines(), settings).save(folder / TOKENIZER)

        learned = stored("tokenizers", [digest, settings.model_dump_json()], learn)
        return TextTokenizer.load(learned / TOKENIZER)

    @classmethod
    def nominal_vocab_size(cls, settings: TextTokenizerSettings) -> int:
        """Returns the size of a ready-made vocabulary, or the largest size of a learned one."""
        if settings.pretrained is not None:
            return TextTokenizer.ready_made(settings, mask=cls.needs_mask).vocab_size
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
        """Returns what stands at the positions of texts; `classes` as in `Positions.of_tokens`."""
        word = self.unit.removesuffix("s")
        return Positions.of_tokens(input_ids, self.tokenizer.names, word, classes)

    def vocabulary(self) -> str:
        """Returns a description of the vocabulary."""
        return f"{self.tokenizer.vocab_size:,} {self.unit}"
