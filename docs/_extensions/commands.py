"""The texts of `headwise COMMAND --help`, where a page has a block `{commands}`."""

import subprocess
import sys

from sphinx.application import Sphinx

_BLOCK = "```{commands}\n```\n"


def described() -> str:
    """What typer writes of each command, as Markdown; the name of each is a second heading."""
    line = ["-m", "typer", "headwise.cli", "utils", "docs", "--name", "headwise"]
    done = subprocess.run([sys.executable, *line], capture_output=True, text=True, check=True)
    # The list of all commands, which goes before, cuts their descriptions short.
    return done.stdout[done.stdout.index("## `headwise") :]


def _fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    if _BLOCK in source[0]:
        source[0] = source[0].replace(_BLOCK, described())


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
