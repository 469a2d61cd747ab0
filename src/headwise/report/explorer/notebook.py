"""The page of a model of one's own, in a notebook or as a file."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from headwise.report.explorer.payload import Payload

_HEIGHT = 720  # pixels of a notebook that the page takes


class Explored:
    """A page on which the heads of a model are seen at work on a text.

    A notebook shows it where it is the value of a cell.

    Attributes:
        payload: all that the page shows; `payload.runs[0].places` has the systems of the model.
    """

    def __init__(self, payload: "Payload") -> None:
        self.payload = payload

    def save(self, path: str | Path) -> Path:
        """Writes the page to an HTML file that needs nothing beside it; returns its path."""
        from headwise.report.explorer.page.html import write_page

        write_page(self.payload, Path(path))
        return Path(path)

    def _repr_html_(self) -> str:
        from headwise.report.explorer.page.html import page_html

        # In a frame of its own neither styles nor scripts of page and notebook meet.
        return (
            f'<iframe srcdoc="{escape(page_html(self.payload))}" sandbox="allow-scripts" '
            f'title="{escape(self.payload.title)}" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
        )


def explore(
    model: nn.Module, tokenizer: Any, text: str, *, target: str | None = None, name: str = ""
) -> Explored:
    """Shows the heads of a model at work on a text: what they decide, and what they read.

    Args:
        model: `Seq2SeqLM`, `CausalLM`, `MaskedLM`, `SequenceClassifier`, or any module that holds
            systems of headwise or of your own, and whose forward takes token ids `(batch, time)`
            as `input_ids` or as its first argument. Its systems read all tokens of the text, one
            position each.
        tokenizer: a fast tokenizer of the transformers library, or the tokenizer of a run.
        text: the text. For a masked language model the tokenizer's mask, `<mask>`, stands for what
            is to be filled in.
        target: what the decoder of a `Seq2SeqLM` reads; by default what the model writes.
        name: of the model, as the page shows it.

    Returns:
        A page that a notebook shows; `save(path)` writes it to a file.

    Raises:
        ValueError: the text is empty or longer than the model takes, or the model holds no system.

    Example:
        >>> import headwise as hw
        >>> from headwise.tasks.text.tokenization import TextTokenizer
        >>> from headwise.tasks.text.tokenizer_settings import TextTokenizerSettings
        >>> tokenizer = TextTokenizer.train(2 * ["open the file"], TextTokenizerSettings())
        >>> config = hw.CausalLMConfig(vocab_size=tokenizer.vocab_size, embed_dim=16, num_heads=2,
        ...                            ffn_dim=16, layers=1, attention="agreement")
        >>> page = hw.explore(hw.CausalLM(config), tokenizer, "open the")
        >>> page.payload.runs[0].stacks["decoder"].tokens[1:3]
        [' open', ' the']
        >>> page.payload.runs[0].places[0].decides
        'position'
    """
    # Imported here: the tasks take a second, and `import headwise` needs none of them.
    from headwise.report.explorer.inputs.any_model import any_input
    from headwise.report.explorer.payload import Payload
    from headwise.report.explorer.recording import recorded_run

    name = name or type(model).__name__
    given = any_input(model, tokenizer, text, target)
    run = recorded_run(name, "", model, given)
    return Explored(
        Payload(title=name, served=False, text=text, target=target, takes_text=True, runs=[run])
    )
