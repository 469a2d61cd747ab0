"""The site of documentation: what Sphinx does not check when `make docs` builds it."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import headwise

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_has_every_public_name_once():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference/*.md"))
    described = re.findall(r"^\.\. auto(?:class|function):: (\w+)$", pages, flags=re.MULTILINE)
    public = {name: getattr(headwise, name) for name in headwise.__all__}
    # Modules and short names, such as MAE, are others.
    own = [name for name, of in public.items() if of.__name__ == name]
    assert sorted(described) == sorted(own)


@pytest.mark.parametrize("name", ["docstrings", "local"])
def test_examples_of_the_extensions(name, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    found = doctest.testmod(importlib.import_module(f"_extensions.{name}"))
    assert found.attempted and not found.failed


@pytest.mark.parametrize(
    ("lines", "rst"),
    [
        (
            ["- As in", "", "      y = `x` W", "", "  of `x`."],
            ["- As in", "", "", "  ::", "", "      y = `x` W", "", "  of ``x``."],
        ),
        (
            ["Args:", "    kdim, vdim,", "        dropout: as in", "        `Routing`."],
            [
                *("Args:", "    kdim, vdim, dropout: as in"),
                "        :py:obj:`Routing <headwise.Routing>`.",
            ],
        ),
        (["Args:", "    num_heads: h."], ["Args:", "    num_heads: \\h."]),  # no item of a list
    ],
)
def test_a_docstring_becomes_markup(lines, rst, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    assert importlib.import_module("_extensions.docstrings").to_rst(lines) == rst


@pytest.mark.parametrize(
    "text",
    [
        '<img src="//c.org/a.png">',
        '<link rel="stylesheet" href="http://c.org/a.css">',
        '<video poster="https://c.org/a.png"></video>',
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(text, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    assert importlib.import_module("_extensions.local").remote_resources(text)
