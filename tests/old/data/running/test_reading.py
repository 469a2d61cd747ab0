"""Readers of running text: the prose of Python's documentation, and its sentences."""

import sys
import types

import pytest

from headwise.data.running.reading import read_pydoc_topics, split_sentences

# --- Python's documentation -------------------------------------------------------------------

TOPIC = """The "with" statement
********************

The "with" statement is used to wrap a block.  This is
common usage (see PEP 343).

   with_stmt ::= "with" expression ":" suite

1. The context expression is evaluated to obtain
   a manager, e.g. a file.

bytes.decode()

   Return the bytes decoded to a string.

Byte Arrays
   A bytearray object is a mutable array.

   with A() as a:
       SUITE

   Code is indented as it
      Likes to be. And it
   may look like prose.

+-----------+-------------------------+
| Operator  | Description of what is. |

   >>> with open("x") as file: file.read()  # This is no prose.

Note:

The "with" statement is used to wrap a block.  This is
common usage (see PEP 343).
"""


def test_prose_is_told_from_code_and_headings(monkeypatch):
    module = types.ModuleType("pydoc_data.topics")
    module.topics = {"with": TOPIC, "empty": "Heading\n*******\n"}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)
    documents, origin = read_pydoc_topics()
    assert documents == [
        [
            'The "with" statement is used to wrap a block.',
            "This is common usage (see PEP 343).",
            "The context expression is evaluated to obtain a manager, e.g. a file.",
            "Return the bytes decoded to a string.",
            "A bytearray object is a mutable array.",
        ]
    ]
    assert "4 paragraphs of prose in 1 topics" in origin
    assert "1 repeated paragraphs are left out" in origin


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("See e.g. Python, i.e. CPython vs. PyPy. Then go.", 2),
        ("It costs 3.5 dollars. no capital follows.", 1),
        ('He said "No." Then he went. (He did.) "So."', 4),
        ("", [""]),
    ],
)
def test_sentences(paragraph, sentences):
    found = split_sentences(paragraph)
    assert " ".join(found) == paragraph
    assert (found if isinstance(sentences, list) else len(found)) == sentences
