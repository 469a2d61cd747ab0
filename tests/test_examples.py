"""The examples run as they stand, made short."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = ("--pretraining-steps", "2", "--steps", "2", "--packages", "rich", "pydantic")


def run(monkeypatch: pytest.MonkeyPatch, name: str, *args: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *args])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.parametrize("system", ["mae", "gated"])
def test_gates_on_a_pretrained_model(system, monkeypatch, capsys):
    run(monkeypatch, "gate_a_pretrained_model.py", *SHORT, "--system", system)
    said = capsys.readouterr().out
    for model in ("GPT2LMHeadModel", "BertForMaskedLM"):
        lines = said.split(f": {model}\n")[1].splitlines()
        assert lines[0] == "  gates added: logits differ by 0.0e+00 at most"
        assert lines[4] == "  loaded on the untouched model: logits differ by 0.0e+00 at most"
        assert lines[5].startswith("  layer 0, mean weights: ")
        assert lines[7] == "  removed: equal to the model as it was: True"
