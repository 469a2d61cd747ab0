"""docs/tutorial.md, typed as it stands, on fewer pairs and for a few steps."""

import hashlib
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headwise
from headwise.cli import app

ROOT = Path(headwise.__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
DATA = ("examples/tutorial/app.fr", "examples/tutorial/app.en")
RECIPE = "examples/tutorial/app.yaml"
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = [text for language, text in FENCED if not language]
COMMANDS: dict[str, str] = {}  # each with what the page shows behind it
for block in BLOCKS:
    if re.match(r"(headwise|printf .* \| headwise) ", block):
        COMMANDS[block.strip()] = ""
    elif COMMANDS:
        COMMANDS[list(COMMANDS)[-1]] += block
SMALL = {
    "vocab_size: 1000": "vocab_size: 300",
    "embed_dim: 64": "embed_dim: 16",
    "ffn_dim: 128": "ffn_dim: 16",
    "encoder_layers: 2": "encoder_layers: 1",
    "decoder_layers: 2": "decoder_layers: 1",
    "max_steps: 400": "max_steps: 4",
    "warmup_steps: 50": "warmup_steps: 1",
    "evaluate_every: 100": "evaluate_every: 2",
    "beam_size: 2": "beam_size: 1",
}
FEWER = {
    "--seeds 1,2,3 --jobs 2": "--seeds 1,2",
    "=2.5e-3,5e-3,1e-2": "=5e-3,1e-2",
    "--tune-steps 200": "--tune-steps 2",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository, with fewer pairs and a smaller model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path(RECIPE).parent.mkdir(parents=True)
    for name in DATA:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        Path(name).write_text("\n".join(lines[:150]) + "\n", encoding="utf-8")
    recipe = (ROOT / RECIPE).read_text(encoding="utf-8")
    Path(RECIPE).write_text(changed(recipe, SMALL), encoding="utf-8")
    return tmp_path


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} stands there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def typed(line: str) -> str:
    """What a command prints, made short."""
    words, _, command = line.rpartition(" | ")
    text = shlex.split(words)[1].replace("\\n", "\n") if words else None
    fewer = {old: new for old, new in FEWER.items() if old in command}
    done = CliRunner().invoke(app, shlex.split(changed(command, fewer))[1:], input=text)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_the_commands_do_what_the_page_says(folder):
    assert len(COMMANDS) == 6
    for line, shown in COMMANDS.items():
        printed = typed(line)
        for told in re.findall(r"^(?:report|page|analysis): .*$", shown, re.MULTILINE):
            assert told in printed.splitlines(), line
            assert (folder / told.split(": ")[1]).is_file()
        for header in re.findall(r"^System .*$", shown, re.MULTILINE):
            assert set(header.split()) <= set(printed.split()), line
        if " | " in line:
            assert len(printed.splitlines()) == len(shown.splitlines())


def test_every_change_that_makes_it_short_is_of_the_page():
    for old in FEWER:
        assert any(old in line for line in COMMANDS), old


def test_the_page_shows_the_recipe_and_the_data_that_are_shipped():
    (recipe,) = (text for language, text in FENCED if language == "yaml")
    lines = (ROOT / RECIPE).read_text(encoding="utf-8").splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("#")) == recipe
    pairs = [(ROOT / name).read_text(encoding="utf-8").splitlines() for name in DATA]
    assert len(pairs[0]) == len(pairs[1])
    assert f"has {len(pairs[0]):,} strings" in PAGE
    for name in DATA:
        digest = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()[:12]
        assert digest in PAGE, name
