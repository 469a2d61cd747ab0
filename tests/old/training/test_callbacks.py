"""The progress bar, on a terminal and elsewhere."""

import io
import re

import pytest
import toy
from rich.console import Console


def shown(folder, *, terminal):
    """What training shows on a console."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=120, color_system=None)
    looks = {"label": "reversals", "console": console}
    run = toy.train(folder, toy.model(), toy.settings(), **looks)
    return written.getvalue(), run


def test_on_a_terminal_a_bar_ends_with_the_last_figures(tmp_path):
    text, run = shown(tmp_path, terminal=True)
    last = re.findall(r"reversals .*", text)[-1]
    losses = {kind: loss for _, kind, loss in toy.curve(run)}
    assert "12/12" in last
    assert f"loss {losses['loss']:.2f} valid {losses['eval_loss']:.2f}" in last
    assert re.search(r"[\d,]+ tokens/s", last)
    assert "left" in last
    assert text.endswith("\x1b[?25h")  # the cursor is back


def test_the_bar_is_taken_down_after_an_error(tmp_path):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)

    def broken(items):
        raise RuntimeError("no batch")

    with pytest.raises(RuntimeError, match="no batch"):
        toy.train(tmp_path, toy.model(), toy.settings(), broken, console=console)
    assert written.getvalue().endswith("\x1b[?25h")
