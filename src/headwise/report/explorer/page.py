"""The page as one HTML file: written, or shown in a notebook."""

from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from torch import nn

from headwise.files import write_text
from headwise.report.explorer.payload import Payload
from headwise.report.policy import source_of

if TYPE_CHECKING:
    from headwise.pretrained.places import HeadLayout

WEB = Path(__file__).parent / "web"
# In this order, since some use others while they are read, and the last runs them all.
SCRIPTS = (
    *("elements", "blobs", "view", "painting", "tokens", "maps", "labelled", "attention", "tables"),
    *("output", "column", "controls", "serving", "main"),
)
# Letters of JSON that would mean something to HTML, or end a line in old JavaScript.
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
_HEIGHT = 720  # pixels of a notebook that the page takes


def page_html(payload: Payload) -> str:
    """Returns the page as one HTML file, which needs nothing beside it.

    It runs its own script alone, and fetches nothing but, if it is served, answers of its server.
    """
    script, style = _script(), _read("explorer.css")
    rules = {
        "default-src": "'none'",
        "script-src": source_of(script),
        "style-src": source_of(style),
        "img-src": "data:",
        "media-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    if payload.served:
        rules["connect-src"] = "'self'"
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        _read("explorer.html.jinja")
    )
    return template.render(
        title=payload.title,
        csp="; ".join(f"{name} {value}" for name, value in rules.items()),
        style=Markup(style),
        script=Markup(script),
        payload=Markup(payload.model_dump_json().translate(_ESCAPES)),
    )


def write_page(payload: Payload, path: Path) -> None:
    """Writes the page to a file, whole or not at all."""
    write_text(path, page_html(payload))


@cache
def _script() -> str:
    parts = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@cache
def _read(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


class Explored:
    """A page on which the heads of a model are seen at work on a text.

    A notebook shows it where it is the value of a cell.

    Attributes:
        payload: all that the page shows; `payload.runs[0].places` has the systems of the model.
    """

    def __init__(self, payload: Payload) -> None:
        self.payload = payload

    def save(self, path: str | Path) -> Path:
        """Writes the page to an HTML file that needs nothing beside it; returns its path."""
        write_page(self.payload, Path(path))
        return Path(path)

    def _repr_html_(self) -> str:
        # In a frame of its own neither styles nor scripts of page and notebook meet.
        return (
            f'<iframe srcdoc="{escape(page_html(self.payload))}" '
            f'sandbox="allow-scripts allow-downloads" title="{escape(self.payload.title)}" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
        )


def explore(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    *,
    target: str | None = None,
    name: str = "",
    layouts: "Mapping[str, HeadLayout] | None" = None,
) -> Explored:
    """Shows the heads of a model at work on a text: what they decide, and what they read.

    Args:
        model: a plain model of transformers whose attentions `headwise.gate_heads` knows;
            `Seq2SeqLM`, `CausalLM`, `MaskedLM`, `SequenceClassifier`; or any module that holds
            systems of headwise or of your own, and whose forward takes token ids `(batch, time)`
            as `input_ids` or as its first argument. Its systems read all tokens of the text, one
            position each.
        tokenizer: a tokenizer of the transformers library, such as
            `AutoTokenizer.from_pretrained("RUN/model")` of a run.
        text: the text. For a masked language model the tokenizer's mask, `<mask>`, stands for what
            is to be filled in; without one, some tokens are hidden. For a classifier a tab stands
            between two texts.
        target: what the decoder of a model with an encoder reads; by default what it writes.
        name: of the model, as the page shows it.
        layouts: where attention modules of further classes of transformers have their heads, by
            the class's name, as in `headwise.gate_heads`.

    Returns:
        A page that a notebook shows; `save(path)` writes it to a file.

    Raises:
        ValueError: the text is empty or longer than the model takes; the model holds no system,
            nor attention of transformers that is known.

    Example:
        >>> import headwise as hw
        >>> from headwise.data.tokenizers import TokenizerSettings, learned
        >>> tokenizer = learned(2 * ["open the file"], TokenizerSettings(), "lines")
        >>> config = hw.CausalLMConfig(vocab_size=len(tokenizer), embed_dim=16, num_heads=2,
        ...                            ffn_dim=16, layers=1, attention="agreement")
        >>> page = hw.explore(hw.CausalLM(config), tokenizer, "open the")
        >>> page.payload.runs[0].stacks["decoder"].tokens[1:3]
        [' open', ' the']
        >>> page.payload.runs[0].places[0].decides
        'position'
    """
    # Imported here: the tasks take a second, and `hw.explore` is no reason to load them yet.
    from headwise.pretrained.gates import observed
    from headwise.report.explorer.recording import recorded_run
    from headwise.report.explorer.texts import any_input

    name = name or type(model).__name__
    given = any_input(model, tokenizer, text, target)
    with observed(model, layouts):
        run = recorded_run(name, "", model, given)
    return Explored(
        Payload(title=name, served=False, text=text, target=target, takes_text=True, runs=[run])
    )
