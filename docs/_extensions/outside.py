"""Links of pages to files outside docs/: as on the code host, so on the site.

`../CHANGELOG.md` and its like are pages of the site, which include the file. Any other file gets a
page that shows its text.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri

ROOT = Path(__file__).parents[2]
# Files that a page of the site includes, or stands for.
PAGES = {
    "README.md": "index",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
}
_LANGUAGES = {".py": "python", ".pyi": "python", ".yaml": "yaml", ".ipynb": "json"}


class LinksToOutside(SphinxTransform):
    """Turns links to files outside docs/ into links to their pages."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Before Sphinx resolves links, and copies the files of those to no page."""
        for link in list(self.document.findall(addnodes.pending_xref)):
            if link.get("refdomain") == "doc" and Path(link["reftarget"]).is_absolute():
                file = Path(link["reftarget"] + ".md").relative_to(ROOT)
                if str(file) in PAGES:
                    link["reftarget"] = PAGES[str(file)]
                else:
                    self._lead_to(link, file)
        for link in list(self.document.findall(addnodes.download_reference)):
            file = _in_repository(self.env.srcdir, self.env.docname, link["reftarget"])
            if file is not None:
                self._lead_to(link, file)

    def _lead_to(self, link: nodes.Element, file: Path) -> None:
        self.env.metadata[self.env.docname].setdefault("files", set()).add(str(file))
        url = relative_uri(f"{self.env.docname}.html", f"files/{file}.html")
        link.replace_self(nodes.reference("", "", *link.children, refuri=url, internal=True))


def _in_repository(docs: Path, page: str, link: str) -> Path | None:
    """The file that a page links to, from the root of the repository; None if it is in docs/."""
    file = (docs / page).parent.joinpath(link).resolve()
    return None if file.is_relative_to(docs) else file.relative_to(ROOT)


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    files = {file for found in app.env.metadata.values() for file in found.get("files", ())}
    for file in sorted(files):
        text = (ROOT / file).read_text(encoding="utf-8")
        language = _LANGUAGES.get(Path(file).suffix, "text")
        shown = app.builder.highlighter.highlight_block(text, language)  # type: ignore[attr-defined]
        body = f"<h1><code>{escape(file)}</code></h1>\n{shown}"
        yield f"files/{file}", {"title": file, "body": body}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LinksToOutside)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
