"""The scripts in benchmarks find all that they import, and the one for GPUs runs without one."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_started(script, monkeypatch):
    monkeypatch.syspath_prepend(str(script.parent))
    assert runpy.run_path(str(script), run_name="not main")["__doc__"]


def test_the_benchmark_of_gpus_runs_on_the_cpu(monkeypatch, tmp_path):
    script, output = next(s for s in SCRIPTS if s.stem == "gpu"), tmp_path / "gpu.json"
    sizes = "--dims 32 --tokens 32 --time 16 --depth 1 --steps 2 --prompt 4 --rounds 1 --batches 2"
    arguments = f"{script} --device cpu --systems standard moa {sizes} --output {output}".split()
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(script), run_name="__main__")
    records = json.loads(output.read_text())["records"]
    exact = [r for r in records if r["part"] == "correctness" and r["dtype"] == "float32"]
    for record in exact:
        assert max(v for k, v in record.items() if k.startswith(("layer", "model"))) < 1e-4
        assert record["unlike"] == "none"
    assert [r["system"] for r in exact] == ["standard", "moa"]
    measured = {(r["part"], r.get("way")) for r in records if "ratio" in r}
    ways = {("decoding", "growing"), ("decoding", "fixed")}
    assert measured == {("layers", None), ("training", None), *ways}
    timed = {r["layer"] for r in records if r["part"] == "layers"}
    assert timed == {"torch attention", "standard", "moa", "JetMoE"}
