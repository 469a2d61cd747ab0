"""Writes docs/compatibility.md from the tests of this folder: `python tests/compatibility/page.py`.

Prints the page, or with `--write` puts it in its place.
"""

import argparse
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[2] / "docs" / "compatibility.md"
sys.path[:0] = [str(FOLDER), *(str(FOLDER.parent / other) for other in ("", "models"))]

from compatible import PLANS, Row  # noqa: E402

BEGINNING = """\
# Compatibility

This page lists what headwise's own models do in other tools. Each line is a test in
`tests/compatibility` that runs for every system. `python tests/compatibility/page.py --write`
writes this page from the tests. Where something does not work, the line has the words of the error.
"""


def rows() -> list[Row]:
    """The rows of all tests, in the order of the files and of the tests in them."""
    found = []
    for path in sorted(FOLDER.glob("test_*.py")):
        module = importlib.import_module(path.stem)
        found += [test.row for test in vars(module).values() if hasattr(test, "row")]
    return found


def page() -> str:
    """The whole page."""
    parts = [BEGINNING]
    every = rows()
    for tool in dict.fromkeys(row.tool for row in every):
        parts.append(_section(tool, [row for row in every if row.tool == tool]))
    return "\n".join(parts)


def _section(tool: str, its_rows: list[Row]) -> str:
    lines = [f"## {tool}", ""]
    for row in its_rows:
        lines.append(f"- {row.feature}")
        for refusal in dict.fromkeys(row.refused.values()):
            refused = [system for system in PLANS if row.refused.get(system) == refusal]
            which = "not supported" if len(refused) == len(PLANS) else f"not {', '.join(refused)}"
            lines[-1] += f" – *{which}*: {_quoted(refusal)}"
    # Of PyTorch a row itself says which.
    needs = {need for row in its_rows for need in row.needs if not need.startswith("torch")}
    if needs:
        lines += ["", f"Needs {', '.join(f'`{name}`' for name in sorted(needs))}."]
    return "\n".join(lines) + "\n"


def _quoted(words: str) -> str:
    return f"`` {words} ``" if "`" in words else f"`{words}`"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/compatibility.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
