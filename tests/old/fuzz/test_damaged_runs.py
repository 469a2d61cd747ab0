"""A file of a run is damaged: the result is as before, or headwise says what it found.

Nearly every file of a run has its sum beside it. `generation_config.json` of the final model has
none, since it is the user's to change.
"""

import re
import shutil
import traceback

import pytest
import tiny_tasks
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headwise.cli import app

COMMANDS = {
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "--text", "one two", "--number", "2"],
    "analyse": ["analyse", "run", "--ablations", "none"],
    "start again": ["train", "language-modelling.yaml", "--system", "mae", "--output", "run"],
}
# What a run that was stopped does not have yet.
OF_THE_END = ("result.json", "outcome.json", "outputs.txt", "model")
# What is of the console, or of the clock.
NO_RESULT = re.compile(r"tokens/s|: run/|: headwise |^corpus|^vocabulary|^\w+: .*SHA")
MAY_BE_CHANGED = "model/generation_config.json"
LONGEST_MESSAGE = 4_000


def answer(done) -> list[str]:
    return [line for line in done.stdout.splitlines() if line and not NO_RESULT.search(line)]


def headwise(command):
    return CliRunner().invoke(app, COMMANDS[command])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, which stays as it is, and what each command says of it."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_tasks.write_recipe("language-modelling", folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        done = headwise("start again")
        assert done.exit_code == 0, done.output
        shutil.copytree("run", "kept")
        answers = {}
        for command in COMMANDS:
            done = headwise(command)
            assert done.exit_code == 0 and answer(done), done.output
            answers[command] = answer(done)
        yield folder, answers


@st.composite
def damages(draw, content: bytes):
    """What may have become of a file; None is a folder in its place, and "" that it is gone."""
    kind = draw(
        st.sampled_from(["flipped", "flipped", "cut", "emptied", "other", "gone", "folder"])
    )
    if kind in ("gone", "folder"):
        return "" if kind == "gone" else None
    if kind == "emptied" or not content:
        return b""
    if kind == "cut":
        return content[: draw(st.integers(0, len(content) - 1))]
    if kind == "other":
        return draw(st.binary(min_size=1, max_size=50))
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 8))):
        changed[draw(st.integers(0, len(content) - 1))] ^= draw(st.integers(1, 255))
    return bytes(changed)


@given(data=st.data())
@examples(suite=6, long=20, shrinks=False)
def test_the_result_is_as_before_or_the_damage_is_told(whole, data):
    folder, answers = whole
    shutil.rmtree(folder / "run")
    shutil.copytree(folder / "kept", folder / "run")
    command = data.draw(st.sampled_from(list(COMMANDS)), label="command")
    if command == "start again" and data.draw(st.booleans(), label="as if it had been stopped"):
        for name in OF_THE_END:
            path = folder / "run" / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    files = sorted(path for path in (folder / "run").rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files), label="file")
    content = path.read_bytes()
    damage = data.draw(damages(content), label="what it is now")
    path.unlink()
    if damage is None:
        path.mkdir()
    elif damage != "":
        path.write_bytes(damage)

    done = headwise(command)
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    assert not unexpected, "".join(traceback.format_exception(done.exception))
    assert done.exit_code in (0, 2), done.output
    said = done.output.replace("\n", " ")
    if done.exit_code == 2:
        assert "error: " in done.stderr
        assert len(done.stderr) <= LONGEST_MESSAGE
        assert path.name in said or path.parent.name in said
    elif path.name not in said and not (path.parent.name in said and "damaged" in said):
        assert answer(done) == answers[command] or str(path).endswith(MAY_BE_CHANGED)
