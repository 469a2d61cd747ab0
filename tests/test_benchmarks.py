"""The scripts in benchmarks run in a tiny setting, and the numbers that they print are sound."""

import json
import math
import sys

import pytest

from benchmarks import chance, speed

TINY = ("--dim", "16", "--heads", "2", "--batch", "2", "--time", "4", "--layers", "1")
ONCE = ("--rounds", "2", "--seconds", "0.0001", "--systems", "mae", "tim", "2K")


@pytest.mark.parametrize("what", ["layer", "step", "decode"])
def test_speed_is_measured_over_the_baseline(what, tmp_path, capsys, monkeypatch):
    arguments = [what, *TINY, *ONCE, "--json", str(tmp_path / "figures.json")]
    monkeypatch.setattr(sys, "argv", ["speed.py", *arguments])
    monkeypatch.setattr(speed, "TOKENS", 2)
    speed.main()
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in figures["results"]}
    baselines = {row["over"] for row in rows.values()}
    layers = {"nn.MultiheadAttention", "PyTorch's layer"}
    assert baselines == (layers if what == "layer" else {"standard"})
    assert all(rows[name]["value"] == 1 and rows[name]["low"] == 1 for name in baselines)
    assert len(rows) - len(baselines) == {"layer": 9, "step": 4, "decode": 4}[what]
    assert all(0 < row["low"] <= row["value"] <= row["high"] for row in rows.values())
    printed = capsys.readouterr().out
    assert all(f"{rows[name]['ms']:.3g}" in printed for name in rows)


def test_chance_counts_the_differences_that_procedures_find(monkeypatch, capsys):
    row = chance.judge(chance.Cell("accuracy", seeds=3, spread=0.0, lead=3.0), 0)
    assert row["headwise"] and row["first seed"]
    row = chance.judge(chance.Cell("accuracy", seeds=1, spread=3.0), 0)
    assert not row["headwise"] and math.isnan(row["detectable"])  # single runs: no star
    monkeypatch.setattr(sys, "argv", ["chance.py", "detectable", "accuracy", "--comparisons", "3"])
    chance.main()
    assert "not corrected" in capsys.readouterr().out
