"""The base of tasks on text of one language: a tokenizer that a run saves."""

from pathlib import Path

from headwise.tasks.task import Task
from headwise.tasks.text.tokenization import TOKENIZER, TextTokenizer


class TextTask(Task):
    """A task with one tokenizer for all of its texts.

    Attributes:
        tokenizer: tokenizer that is learned from the training part and saved with the run.
    """

    saved = (TOKENIZER,)
    tokenizer: TextTokenizer

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / TOKENIZER)

    @staticmethod
    def saved_tokenizer(folder: Path | None) -> TextTokenizer | None:
        """Loads the tokenizer that `save` has written to the folder of a run; None before that."""
        if folder is None or not (folder / TOKENIZER).is_dir():
            return None
        return TextTokenizer.load(folder / TOKENIZER)

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

    def vocabulary(self) -> str:
        """Returns a description of the vocabulary."""
        return f"{self.tokenizer.vocab_size:,} {self.unit}"
