"""The script of docs/scale.md, run by two processes."""

import re
from pathlib import Path

import pytest
from torchrun import on_processes

PAGE = (Path(__file__).parent.parent / "docs/scale.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_print_what_the_page_shows(sharded, tmp_path):
    (script,) = re.findall(r"\*\*train_parallel\.py\*\*\n\n```py\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"Both print\n\n```\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "train_parallel.py").write_text(script, encoding="utf-8")
    printed = on_processes(2, tmp_path / "train_parallel.py", *(["--shard"] if sharded else []))
    assert numbers(printed) == pytest.approx(numbers(shown), abs=2e-3)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", text)]
