"""What commands print, where a page has a block `{commands}`."""

import os
import subprocess
import sys

from sphinx.application import Sphinx


def _printed(*line: str) -> str:
    environment = {**os.environ, "COLUMNS": "80"}
    command = [sys.executable, "-m", *line]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


def commands() -> str:
    """What typer writes of each command, as Markdown; the name of each is a second heading."""
    text = _printed("typer", "headwise.cli", "utils", "docs", "--name", "headwise")
    # The list of all commands, which goes before, cuts their descriptions short.
    return text[text.index("## `headwise") :]


def _fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    block = "```{commands}\n```\n"
    if block in source[0]:
        source[0] = source[0].replace(block, commands())


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
