"""Every command: its help, its JSON beside its text, how it ends, and what it leaves."""

import io
import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recipes import shipped
from support.tiny_tasks import answer, read_json, run, write_recipe

from headwise.__main__ import main
from headwise.cli import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands
# What design keeps; others may be there.
KEPT = ("train", "compare", "evaluate", "predict", "analyse", "explore", "cost", "recipes")


COMPARE = "compare tiny.yaml --systems standard,mae --output compared"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a recipe, runs of a comparison, and files that are none of both."""
    folder = tmp_path_factory.mktemp("place")
    recipe = write_recipe("classification", folder)
    recipe.rename(folder / "tiny.yaml")
    (folder / "broken.yaml").write_text("model: [", encoding="utf-8")
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "text").write_text("one two\nthree\n", encoding="utf-8")
    (folder / "empty").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.delenv("COLUMNS", raising=False)
        (folder / "compared.json").write_text(json.dumps(answer(*COMPARE.split())))
        yield folder


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_the_help_of_a_command_ends_with_an_example_that_it_takes(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = run(name, "--help").stdout
    options = [option for each in COMMANDS[name].params for option in each.opts]
    assert all(option in said for option in options if option.startswith("-"))
    (line,) = re.findall(rf"headwise {name} \w.*$", said, re.MULTILINE)
    _, _, *arguments = shlex.split(line)
    with COMMANDS[name].make_context(name, arguments) as context:
        assert set(context.params) == {each.name for each in COMMANDS[name].params}
    for key in {"recipe", "recipes"} & set(context.params):
        named = context.params[key]
        assert {*([named] if isinstance(named, str) else named)} <= set(shipped())


AT_ONCE = [  # a line, how it ends, and what it says
    ("--help", 0, ["analyse"]),
    ("recipes", 0, ["lm-pydoc"]),
    ("train lm-pydok", 2, ["lm-pydok", "lm-pydoc"]),
    ("train lm-pydoc --system mea-7", 2, ["mea-7", "mae-7"]),
    ("train lm-pydoc --dataset other", 2, ["other"]),
    ("compare lm-pydoc --systems standard,mao", 2, ["mao", "moa"]),
    ("compare lm-pydoc --seeds 1,1", 2, ["1,1"]),
    ("cost lm-pydoc --systems mao", 2, ["mao", "moa"]),
    ("evaluate runs/missing", 2, ["runs/missing"]),
    ("evaluate . --set training.seed=2", 2, ["recipe.yaml"]),
    ("predict runs/missing", 2, ["runs/missing"]),
    ("analyse no/such/run", 2, ["no/such/run"]),
    ("explore no/such/run", 2, ["no/such/run"]),
]


def test_help_and_errors_of_names_do_not_wait_for_pytorch(tmp_path):
    program = "import shlex, sys; from headwise.cli import app\n"
    program += "for line in sys.argv[1:]:\n"
    program += "    try: app(shlex.split(line))\n"
    program += "    except SystemExit as end: print(end.code, file=sys.stderr)\n"
    program += "    print('\\0', flush=True); print('\\0', file=sys.stderr)\n"
    program += "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    command = [sys.executable, "-c", program, *(line for line, _, _ in AT_ONCE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    of_lines = zip(AT_ONCE, done.stdout.split("\0"), done.stderr.split("\0"), strict=False)
    for (line, code, words), printed, error in of_lines:
        assert error.split()[-1] == str(code), (line, error)
        assert all(word in (error if code else printed) for word in words), (line, printed, error)


# --- text and JSON ------------------------------------------------------------------------------


def of_scores(found: dict[str, Any]) -> list[str]:
    """The scores and their intervals as the text has them."""
    return [
        f"{score['name']} {score['value']:.{score['digits'] + 1}f} "
        f"[{score['low']:.{score['digits'] + 1}f}, {score['high']:.{score['digits'] + 1}f}]"
        for score in found["scores"]
    ]


LINES: dict[str, Callable[[Any], list[str]]] = {  # to what the text has of the JSON
    "evaluate compared/mae-seed1": of_scores,
    "evaluate compared/standard-seed1 --part train": lambda of: [*of_scores(of), "train"],
    "evaluate compared/mae-seed1 --against compared/standard-seed1": lambda of: [
        *of_scores(of),
        *of_scores(of["against"]),
        f"{of['difference']['value']:+.2f} [{of['difference']['low']:+.2f}",
    ],
    "train tiny.yaml --system moa --output trained": lambda of: [
        f"{of['validation_loss']:.3f}",
        *of_scores(of),
        of["model"],
    ],
    COMPARE: lambda of: [
        of["report"],
        *(each["system"] for each in of["results"]),
        *(f"{each['validation_loss']:.3f}" for each in of["runs"]),
    ],
    "predict compared/mae-seed1 --text one --text two": lambda of: of["predictions"],
    "analyse compared/mae-seed1 --ablations none": lambda of: [
        *of["findings"]["mae-seed1"],
        of["page"],
    ],
    "explore compared/mae-seed1": lambda of: [of["page"]],
    "cost tiny.yaml --systems standard,mae": lambda of: list(of["recipes"][0]["systems"]),
    "recipes": lambda of: [f"{each['name']} " for each in of],
}


@pytest.mark.parametrize("line", LINES)
def test_text_and_json_say_the_same(place, line):
    """And the text can be read where there is no terminal: nothing colours it or moves a cursor."""
    found = read_json((place / "compared.json").read_text()) if line == COMPARE else None
    found = found or answer(*line.split())
    done = run(*line.split())
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    for said in LINES[line](found):
        assert " ".join(said.split()) in text
    assert not re.search(r"[\x1b\r]", done.output)


@pytest.mark.parametrize("line", ["evaluate compared/mae-seed1", "analyse compared/mae-seed1"])
def test_what_takes_long_is_said_where_there_is_no_terminal(place, line):
    assert "mae-seed1" in run(*line.split(), "--json").stderr


def test_the_json_of_every_command_is_compared_with_its_text():
    assert {line.split()[0] for line in LINES} == set(KEPT)


def test_of_an_error_there_is_no_json(place):
    for line in ("evaluate compared/mae-seed1 --part tset", "train broken.yaml", "predict empty"):
        done = run(*line.split(), "--json")
        assert (done.exit_code, done.stdout) == (2, "") and done.stderr


def test_a_training_that_diverges_is_told(place):
    """Its loss is no number, which JSON has not; whoever waits for the command is told by 1."""
    line = "train tiny.yaml --output diverged --set training.learning_rate=1e30"
    done = run(*line.split(), "--set", "training.warmup_steps=0", "--json")
    assert done.exit_code == 1 and "nan" in done.stderr
    assert read_json(done.stdout)["validation_loss"] is None


def test_a_bug_keeps_its_traceback(place, monkeypatch):
    """And is not taken for an error of the user."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no heads today")

    monkeypatch.setattr("headwise.runs.evaluate.evaluate_part", fail)
    assert isinstance(run("evaluate", "compared/mae-seed1").exception, RuntimeError)


OWN = """
import headwise as hw
class Unpacks(hw.MultiHeadAttention):
    def forward(self, query, *others, **options):
        batch, time = query.shape
"""


def test_a_bug_in_a_system_of_one_s_own_keeps_its_traceback(place, monkeypatch):
    """Also one that Python tells by a ValueError, as errors of users are told."""
    Path("unpacking.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(place)
    line = "train tiny.yaml --import unpacking --set model.attention=unpacking:Unpacks"
    done = run(*line.split(), "--output", "unpacked")
    assert type(done.exception) is ValueError and "unpack" in str(done.exception)


@pytest.mark.parametrize("name", [name for name in KEPT if name != "train"])
def test_torchrun_starts_trainings_alone(name, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    needed = {"evaluate": ["x"], "predict": ["x"], "analyse": ["x"], "explore": ["x"]}
    done = run(name, *needed.get(name, []))
    assert done.exit_code == 2 and "--nproc" in done.stderr and f"headwise {name}" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_letter_that_an_encoding_lacks_ends_no_command(encoding, monkeypatch):
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["headwise", "recipes", "\u4e2d\u2013"])
    with pytest.raises(SystemExit) as end:
        main()
    streams["stderr"].flush()
    assert end.value.code == 2
    assert "\\u4e2d" in streams["stderr"].buffer.getvalue().decode(encoding)


WRONG = [
    ("--part tset", {"--part", "tset", "test", "validation"}),
    ("--set evaluation.ablatio=1", {"ablatio", "ablation"}),
    ("--set training.seed=2", {"training.seed"}),
    ("--ablate mae=unifrm", {"unifrm", "uniform"}),
    ("--against none", {"none"}),
    ("--data file.test=train.tsv", {"--data", "file", "files"}),
    ("--data files.test=train.tsv --data 'columns.text=\"a, b=2\"'", {"--data", "a, b=2"}),
    ("--data files.test=train.tsv --part train", {"--data", "--part"}),
]


@pytest.mark.parametrize(("options", "must_name"), WRONG, ids=[line for line, _ in WRONG])
def test_options_that_a_run_lacks_are_refused_by_name(place, options, must_name):
    done = run("evaluate", "compared/mae-seed1", *shlex.split(options))
    assert (done.exit_code, done.stdout) == (2, "")
    assert all(name in done.stderr for name in must_name)


# --- any command line ---------------------------------------------------------------------------

FILES = ["compared/mae-seed1", "compared/standard-seed1", "tiny.yaml", "broken.yaml", "none.yaml"]
FILES += ["empty", "bytes", "text", "missing/x", ".", "/dev/null", "\0", "compared/mae-seed1/model"]
WORDS = ["", " ", "-", "--", "-x", "=", ",", "a,b", "a=b", "mae", "mae=uniform", "x" * 5000]
WORDS += ["\u00e9\u202e", "[bold]", "{0}", "0", "-1", "1.5", "nan", "1e30", "9" * 30, "2,2"]
# What each parameter expects: without it, all lines would end at the first word that is wrong.
SENSIBLE = {
    "run": FILES[:2],
    "models": FILES[:2],
    "recipe": ["tiny.yaml"],
    "recipes": ["tiny.yaml", "lm-pydoc"],
    "name": ["lm-pydoc"],
    "system": ["standard", "mae"],
    "systems": ["standard"],
    "seeds": ["1"],
    "jobs": ["1"],
    "lengths": ["3"],
    "part": ["test", "validation"],
    "data": ["files.test=train.tsv"],
    "against": FILES[:2],
    "ablate": ["mae=uniform"],
    "ablations": ["none"],
    "item": ["0", "999"],
    "output": ["made", "made.html"],
    "changes": ["data.max_length=32", "training.max_steps=0", "model.num_heads=3", "data=[]"],
}
# What waits for somebody, and what takes long.
LEFT_OUT = ("on", "nproc", "serve", "open_page", "port", "match", "tune", "tune_steps", "papers")
LEFT_OUT += ("dry_run",)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command of headwise with parameters, most of which are what it expects."""
    name = draw(st.sampled_from(KEPT))
    line = [name]
    for parameter in COMMANDS[name].params:
        is_argument = parameter.param_type_name == "argument"
        # Without these all systems would be trained, and all units ablated.
        wanted = is_argument or parameter.name in ("systems", "ablations")
        wanted |= draw(st.integers(0, 3)) == 3
        if not wanted or parameter.name in LEFT_OUT:
            continue
        line += [] if is_argument else [parameter.opts[0]]
        if is_argument or not parameter.is_flag:
            is_sensible = parameter.name in SENSIBLE and draw(st.integers(0, 5)) < 5
            values = SENSIBLE[parameter.name] if is_sensible else FILES + WORDS
            line.append(draw(st.sampled_from(values)))
    return line


@settings(max_examples=max(2, settings.default.max_examples // 2))
@given(line=command_lines(), stdin=st.sampled_from(["one two\n", "", "\0", "caf\udce9"]))
def test_no_command_line_ends_in_a_traceback(place, line, stdin):
    before = written(place)
    done = run(*line, stdin=stdin.encode(errors="surrogateescape"))
    assert_ended_well(done)
    if done.exit_code == 2:
        assert written(place) == before


def written(place: Path) -> list[Path]:
    """All files but what a folder is claimed by, which counts once something is trained there."""
    claims = {".lock", "recipe.yaml", "comparison.yaml", "inputs.sha256"}
    return sorted(path for path in place.rglob("*") if path.is_file() and path.name not in claims)


def assert_ended_well(done: Result) -> None:
    if not isinstance(done.exception, (SystemExit, type(None))):
        pytest.fail("".join(traceback.format_exception(done.exception)))
    assert done.exit_code in (0, 1, 2)
    assert "Traceback" not in done.output and len(done.stderr) < 8_000
    assert bool(done.exit_code) <= bool(done.stderr.strip())


def test_ctrl_c_leaves_what_the_same_command_goes_on_from(place):
    line = ["train", "tiny.yaml", "--output", "stopped", "--set", "training.max_steps=1000"]
    process = multiprocessing.get_context("fork").Process(target=_work, args=(line,))
    process.start()
    until = time.monotonic() + 120
    while not list(place.glob("stopped/checkpoint-*")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    process.join(120)
    assert process.exitcode == 130
    said = (place / "said").read_text(encoding="utf-8")
    assert "Traceback" not in said and re.search(r"\d", said)
    assert not list(place.glob("stopped/result.json"))
    assert not [path for path in place.rglob("*") if "partial" in path.name]
    assert list(place.glob("stopped/checkpoint-*"))


def _work(line: list[str]) -> None:
    done = run(*line)
    Path("said").write_text(done.stderr, encoding="utf-8")
    sys.exit(done.exit_code)
