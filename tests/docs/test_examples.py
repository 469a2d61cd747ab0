"""Each script of examples/ runs, made short, and prints what its text promises."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# What is changed in each to make it short.
SHORT = {
    "drop_in_attention": {"SEEDS": "(1, 2)", "EPOCHS": "1"},
    "language_model_own_loop": {"PACKAGE": '"rich"', "STEPS": "2"},
    "gate_a_pretrained_model": {
        "PACKAGES": '("rich", "typer")',
        "STEPS": "2",
        "PRETRAINING_STEPS": "2",
    },
    "what_the_heads_do": {"PACKAGES": '("rich", "pydantic", "typer")', "STEPS": "2"},
    "a_system_of_your_own": {
        "PACKAGES": '["rich", "pydantic", "typer"]',
        "STEPS": "3",
        "SEEDS": "[1, 2]",
    },
}
# What it prints then, whatever the numbers, in this order.
PRINTS = {
    "drop_in_attention": [r"nn\.MultiheadAttention .*\d%"],
    "language_model_own_loop": [r"validation loss \d", "loaded: the same logits: True"],
    "gate_a_pretrained_model": [
        r"gates added: logits differ by 0\.0e\+00 at most",
        r"loaded on the untouched model: logits differ by 0\.0e\+00 at most",
        "removed: equal to the model as it was: True",
    ],
    "what_the_heads_do": [r"accuracy \d+\.\d%", r"page: .*analysis\.html"],
    "a_system_of_your_own": [
        "passes check_system",
        "without training it is standard attention: True",
        r"report: .*report\.html",
    ],
}


def shortened(name: str) -> str:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    for setting, value in SHORT[name].items():
        text, count = re.subn(rf"^{setting} = [^#\n]*", f"{setting} = {value}  ", text, flags=re.M)
        assert count == 1, f"{name}.py has no setting {setting}"
    return text


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    script = tmp_path / f"{name}.py"
    script.write_text(shortened(name), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    runpy.run_path(str(script), run_name="__main__")
    printed, at = capsys.readouterr().out, 0
    for line in PRINTS[name]:
        found = re.compile(line).search(printed, at)
        assert found, f"{name}.py does not print {line!r}:\n{printed}"
        at = found.end()
