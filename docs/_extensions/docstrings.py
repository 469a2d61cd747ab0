"""Docstrings are plain text with `names` in backticks and indented equations; Sphinx reads RST."""

import re
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

import headwise

# In the text of a docstring: `name`, but not the ``literal`` or the :role:`text` of RST.
_NAME = re.compile(r"(?<![`:\w])`([^`]+)`(?!`)")
# The head of a section, such as Args, whose lines are indented and are no equations.
_SECTION = re.compile(r"[A-Z]\w+( [a-z]+)?:")
# Names of arguments with one description, which take more than a line.
_NAMES = re.compile(r"(\w+, )*\w+,")
# A letter of the paper as the description, "num_heads: h.", would begin a list.
_LETTER = re.compile(r"(: )(\w\.)")


def _code(found: re.Match[str]) -> str:
    """A name as code, which leads to its description if it is a public one."""
    text = found[1]
    name = text.removeprefix("headwise.").partition("(")[0]
    if name in headwise.__all__:
        return f":py:obj:`{text} <headwise.{name}>`"
    return f"``{text}``"


def to_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring as RST: equations and diagrams are shown as they stand.

    >>> to_rst(["With `x`:", "", "    y = x W", "", "Args:", "    x: an input."])
    ['With ``x``:', '', '', '::', '', '    y = x W', '', 'Args:', '    x: an input.']
    """
    blocks: list[tuple[bool, str]] = []  # whether it stands as it is, and a line
    margin, in_section, names = 0, False, ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if names:
            line, names = f"{names} {line.strip()}", ""
        if in_section and _NAMES.fullmatch(line.strip()):
            names = line
            continue
        if in_section:
            line = _LETTER.sub(r"\1\\\2", line)
        if line and not indent:
            in_section = bool(_SECTION.fullmatch(line))
        is_block = bool(line) and not in_section and indent >= margin + 4
        if is_block and not _in_block(blocks):
            blocks += [(True, ""), (True, " " * margin + "::"), (True, "")]
        elif line and not is_block:
            margin = indent + 2 * line.lstrip().startswith("- ")
        blocks.append((is_block, line))
    rst: list[str] = []
    for as_it_is, group in groupby(blocks, key=lambda block: block[0]):
        text = "\n".join(line for _, line in group)
        rst += (text if as_it_is else _NAME.sub(_code, text)).split("\n")
    return rst


def _in_block(blocks: list[tuple[bool, str]]) -> bool:
    """Whether the last line that is not empty stands as it is."""
    return next((as_it_is for as_it_is, line in reversed(blocks) if line), False)


def _convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _convert, priority=100)  # napoleon: 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
