"""Joins the template, the style and the scripts of the page into one HTML file."""

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from headwise.files import write_text
from headwise.report.explorer.payload import Payload

_HERE = Path(__file__).parent
# In this order, since some use others while they are read, and the last runs them all.
SCRIPTS = (
    *("elements", "blobs", "view", "colours", "pixels", "places", "painting", "tokens", "image"),
    *(
        "spectrogram",
        "attention",
        "legend",
        "explanation",
        "numbers",
        "difference",
        "output",
        "heads",
    ),
    *("column", "controls", "serving", "removing", "frame", "main"),
)
# Letters of JSON that would mean something to HTML, or end a line in old JavaScript.
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def page_html(payload: Payload) -> str:
    """Returns the page as one HTML file, which needs nothing beside it.

    It runs its own script alone, and fetches nothing but, if it is served, answers of its server.
    """
    script, style = _script(), _read("explorer.css")
    rules = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
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
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a content security policy names a script or a style that may be in the page."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
