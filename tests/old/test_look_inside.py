"""docs/look-inside.md, typed as it stands: what it prints, and what it finds."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import headwise

PAGE = (Path(headwise.__file__).parents[2] / "docs/look-inside.md").read_text(encoding="utf-8")
# Each block of Python with what the page shows that it prints.
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
NUMBER = r"\d[\d,.]*"


def run(steps: int) -> tuple[dict, list[str]]:
    """What the page's names stand for at its end, and what each block has printed."""
    names: dict = {}
    printed = []
    for code, _ in BLOCKS:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code.replace("steps = 400", f"steps = {steps}"), names)
        printed.append(out.getvalue())
    return names, printed


def test_the_blocks_print_what_the_page_shows_but_for_the_numbers():
    assert PAGE.count("```python\n") == len(BLOCKS) == 7
    assert "steps = 400" in BLOCKS[0][0]
    names, printed = run(steps=4)
    for found, (_, shown) in zip(printed, BLOCKS, strict=True):
        lines = [sorted(re.sub(NUMBER, "#", text).splitlines()) for text in (found, shown)]
        if "{" not in shown:  # which heads go is a matter of the numbers
            assert [line.replace("-", "") for line in lines[0]] == lines[1]
    assert len(names["decisions"]) == 2
    assert names["smaller"].num_parameters() < names["model"].num_parameters()


@pytest.mark.slow
def test_what_was_found():
    names, _ = run(steps=400)
    importance = names["importance"]
    first, second = importance[:2]
    assert first.layer == 0
    assert first.low > 1.5 * second.high  # one head does most of the work
    last_byte = [
        weights[:, head].diagonal(-1, 1, 2)[:, 8:].mean().item()
        for weights in names["attentions"]
        for head in range(4)
    ]
    assert max(range(8), key=last_byte.__getitem__) == first.head
    assert all(path == "transformer.h.1.attn" for path in importance.least(3))
    assert names["loss"](names["smaller"]) < 1.03 * names["loss"](names["model"])
