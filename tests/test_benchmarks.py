"""The scripts in benchmarks find all that they import."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_started(script, monkeypatch):
    if script.stem == "gated_pretrained":
        pytest.importorskip("peft")
    monkeypatch.syspath_prepend(str(script.parent))
    assert runpy.run_path(str(script), run_name="not main")["__doc__"]
