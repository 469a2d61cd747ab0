"""The site needs no network: a page that would load something from elsewhere is an error."""

from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

# What a browser loads by itself; the address of a link, `a`, is not among it.
_LOADED = {"src", "srcset", "data", "poster"}


class _Loaded(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.remote: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            loads = name in _LOADED or (tag == "link" and name == "href")
            if loads and (value or "").startswith(("http:", "https:", "//")):
                self.remote.append(f"{tag} {name}={value}")


def remote_resources(text: str) -> list[str]:
    """What a page would load from elsewhere.

    >>> remote_resources('<a href="https://a.org"><script src="https://b.org/c.js"></script></a>')
    ['script src=https://b.org/c.js']
    """
    page = _Loaded()
    page.feed(text)
    return page.remote


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is not None:
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix == ".html":
            found = remote_resources(path.read_text(encoding="utf-8"))
        elif path.suffix == ".css":
            text = path.read_text(encoding="utf-8")
            found = [mark for mark in ("url(http", "url(//", "@import") if mark in text]
        else:
            continue
        if found:
            raise ExtensionError(f"{path} loads from elsewhere: {', '.join(found)}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
