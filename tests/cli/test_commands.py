"""Every command: its help, its text and JSON, its status, and the files that it leaves."""

import io
import math
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recipes import shipped
from support.run_folders import headwise
from support.tiny_tasks import answer, read_json, run, write_recipe

from headwise.__main__ import main
from headwise.cli import app
from headwise.cli.app import print_json
from headwise.models.plan import SYSTEMS
from headwise.recipes.keys import keys_of
from headwise.recipes.recipe import TASKS
from headwise.report.page import format_count, format_number

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands
NAMES = ("train", "compare", "evaluate", "predict", "analyse", "explore", "cost", "recipes")


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
        yield SimpleNamespace(folder=folder, compared=headwise(*COMPARE.split()).stdout)


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_ends_with_an_example_that_it_takes(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = run(name, "--help").stdout
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts]
    assert all(option in text for option in options if option.startswith("-"))
    (line,) = re.findall(rf"headwise {name} \w.*$", text, re.MULTILINE)
    _, _, *arguments = shlex.split(line)
    with COMMANDS[name].make_context(name, arguments) as context:
        assert set(context.params) == {each.name for each in COMMANDS[name].params}
    assert context.params.get("recipe", "lm-pydoc") in shipped()


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
    outputs = zip(AT_ONCE, done.stdout.split("\0"), done.stderr.split("\0"), strict=False)
    for (line, code, words), printed, error in outputs:
        assert error.split()[-1] == str(code), (line, error)
        assert all(word in (error if code else printed) for word in words), (line, printed, error)


# --- text and JSON ------------------------------------------------------------------------------


def score_lines(document: dict[str, Any]) -> list[str]:
    """The scores and their intervals as the text has them."""
    lines = []
    for score in document["scores"]:
        digits = score["digits"] + 1
        value, low, high = (f"{score[key]:.{digits}f}" for key in ("value", "low", "high"))
        lines.append(f"{score['name']} {value} [{low}, {high}]")
    return lines


def cost_lines(document: dict[str, Any]) -> list[str]:
    """The rows of the table of costs."""
    lines = []
    for system, cost in document["systems"].items():
        numbers = [*cost["parameters"].values(), cost["linear_macs"], cost["macs"]]
        lines.append(" ".join([system, *map(format_count, numbers)]))
    return lines


LINES: dict[str, Callable[[Any], list[str]]] = {  # a command to the parts of its JSON in the text
    "evaluate compared/standard-seed1 --split train": lambda json: [*score_lines(json), "train"],
    "evaluate compared/mae-seed1 --against compared/standard-seed1": lambda json: [
        *score_lines(json),
        *score_lines(json["against"]),
        " [".join(format_number(json["difference"][x], 2, sign=True) for x in ("value", "low")),
        "headwise analyse compared/mae-seed1",
    ],
    "predict compared/mae-seed1 --text one --text two": lambda json: json["predictions"],
    "analyse compared/mae-seed1 --ablation-level none": lambda json: [
        *json["findings"]["mae-seed1"],
        json["page"],
        "headwise explore compared/mae-seed1",
    ],
    "explore compared/mae-seed1": lambda json: [json["page"]],
    "cost tiny.yaml --systems standard,mae": lambda json: [
        *cost_lines(json),
        *(f"{length} positions in the {stack}" for stack, length in json["lengths"].items()),
    ],
}


@pytest.mark.parametrize("line", LINES)
def test_what_the_text_says_the_json_says_too(place, line, monkeypatch):
    """And the text can be read where there is no terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    document, done = answer(*line.split()), headwise(*line.split())
    text = " ".join(done.stdout.split())
    assert all(" ".join(part.split()) in text for part in LINES[line](document))
    assert not re.search(r"[\x1b\r]", done.output)


def test_training_prints_what_the_files_of_runs_have(place):
    result = read_json(Path("compared/mae-seed1/result.json").read_text(encoding="utf-8"))
    assert f"{result['validation_loss']:.4f}" in place.compared
    assert "report: compared/report.html" in place.compared
    assert "headwise explore compared/mae-seed1" in place.compared
    text = run("train", "compared/mae-seed1").stdout
    assert all(line in " ".join(text.split()) for line in score_lines(result))
    assert "model: compared/mae-seed1/model" in text and "analyse compared/mae-seed1" in text


@pytest.mark.parametrize("name", [*TASKS, *SYSTEMS])
def test_every_key_of_a_task_and_of_a_system_is_told_with_its_meaning(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "9999")
    printed, keys = run("recipes", "--keys", name).stdout, keys_of(name)
    for key in keys:
        assert re.search(rf"^{re.escape(key.name)} +{re.escape(key.meaning)}", printed, re.M)
        assert key.meaning
    names = {key.name for key in keys}
    common = {"training.rules", "model.embed_dim", "data.files", "systems.NAME.model"}
    assert (name in SYSTEMS or common <= names) and "model.vocab_size" not in names


def test_numbers_that_json_has_not_are_null(capsys):
    print_json({"loss": math.nan, "score": math.inf})
    assert read_json(capsys.readouterr().out) == {"loss": None, "score": None}


def test_of_an_error_there_is_no_json_and_what_takes_long_is_said(place):
    lines = ["evaluate compared/mae-seed1 --split tset", "cost broken.yaml", "predict empty"]
    lines += ["cost tiny.yaml --set systems={} --set model.ffn_dims=16"]
    for line in lines:
        done = run(*line.split(), "--json")
        assert (done.exit_code, done.stdout) == (2, "") and done.stderr
    for name in ("evaluate", "analyse"):  # where there is no terminal with a bar
        assert "mae-seed1" in run(name, "compared/mae-seed1", "--json").stderr


def test_a_training_that_diverges_is_told(place):
    """Whoever waits for the command is told by its status."""
    line = "train tiny.yaml --output diverged --set training.learning_rate=1e30"
    done = run(*line.split(), "--set", "training.warmup_steps=0")
    assert done.exit_code == 1 and "validation loss is nan" in " ".join(done.stderr.split())


UNPACKS = """
import headwise as hw
class Unpacks(hw.MultiHeadAttention):
    def forward(self, query, *others, **options):
        batch, time = query.shape
"""


@pytest.mark.parametrize("cache", ["text", "text/below"])
def test_a_cache_that_cannot_be_written_is_told_by_its_variable(cache, place, monkeypatch):
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(place.folder / cache))
    line = "train tiny.yaml --system standard --set tokenizer.vocab_size=277 --output uncached"
    done = run(*line.split())
    assert done.exit_code == 2 and "HF_DATASETS_CACHE" in done.stderr
    assert not (place.folder / "uncached" / "model").exists()


def test_a_bug_keeps_its_traceback(place, monkeypatch):
    """Also one in a system of one's own that Python tells by a ValueError, as users' errors are."""
    Path("unpacking.py").write_text(UNPACKS, encoding="utf-8")
    monkeypatch.syspath_prepend(place.folder)
    line = "train tiny.yaml --import unpacking --set model.attention=unpacking:Unpacks"
    done = run(*line.split(), "--output", "unpacked")
    assert type(done.exception) is ValueError and "unpack" in str(done.exception)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no heads today")

    monkeypatch.setattr("headwise.runs.evaluate.evaluate", fail)
    assert isinstance(run("evaluate", "compared/mae-seed1").exception, RuntimeError)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "train"])
def test_torchrun_starts_trainings_alone(name, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    arguments = {"evaluate": ["x"], "predict": ["x"], "analyse": ["x"], "explore": ["x"]}
    done = run(name, *arguments.get(name, []))
    assert done.exit_code == 2 and f"headwise {name}" in done.stderr


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
    ("--split tset", {"tset", "test", "validation"}),
    ("--set evaluation.ablatio=1", {"ablatio", "ablation"}),
    ("--set training.seed=2", {"training.seed"}),
    ("--ablate mae=unifrm", {"unifrm", "uniform"}),
    ("--against none", {"none"}),
    ("--split more --set data.tests.more.file.test=a.tsv", {"file"}),
]


@pytest.mark.parametrize(("options", "must_name"), WRONG, ids=[line for line, _ in WRONG])
def test_options_that_a_run_lacks_are_refused_by_name(place, options, must_name):
    done = run("evaluate", "compared/mae-seed1", *shlex.split(options))
    assert (done.exit_code, done.stdout) == (2, "")
    assert all(name in done.stderr for name in must_name)


# --- any command line ---------------------------------------------------------------------------

FILES = ["compared/mae-seed1", "compared/standard-seed1", "tiny.yaml", "broken.yaml", "empty"]
FILES += ["bytes", "text", "missing/x", ".", "/dev/null", "\0", "compared/mae-seed1/model"]
WORDS = ["", "-", "--", "-x", "=", "a,b", "a=b", "mae", "mae=uniform", "x" * 5000, "\u00e9\u202e"]
WORDS += ["[bold]", "{0}", "0", "-1", "1.5", "nan", "9" * 30, "data.max_length=32", "data=[]"]
# Without values that fit, all lines would end at the first word that is wrong.
FITTING = {"run": FILES[:2], "models": FILES[:2], "recipe": ["tiny.yaml"], "systems": ["standard"]}
FITTING |= {"system": ["mae"], "ablation_level": ["none"], "split": ["test"], "against": FILES[:2]}
LEFT_OUT = ("ray_address", "match", "tune", "jobs")  # they wait for somebody, or take long


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command of headwise with parameters, most of which fit."""
    name = draw(st.sampled_from(NAMES))
    line = [name]
    for parameter in COMMANDS[name].params:
        is_argument = parameter.param_type_name == "argument"
        # Without these two all systems would be trained, and all units ablated.
        is_needed = is_argument or parameter.name in ("systems", "ablation_level")
        if parameter.name in LEFT_OUT or not (is_needed or draw(st.integers(0, 3)) == 3):
            continue
        line += [] if is_argument else [parameter.opts[0]]
        if is_argument or not parameter.is_flag:
            fits = parameter.name in FITTING and draw(st.integers(0, 5)) < 5
            line.append(draw(st.sampled_from(FITTING[parameter.name] if fits else FILES + WORDS)))
    return line


@settings(max_examples=max(2, settings.default.max_examples // 2))
@given(line=command_lines(), stdin=st.sampled_from(["one two\n", "", "\0", "caf\udce9"]))
def test_no_command_line_ends_in_a_traceback(place, line, stdin):
    done = run(*line, stdin=stdin.encode(errors="surrogateescape"))
    if not isinstance(done.exception, (SystemExit, type(None))):
        pytest.fail("".join(traceback.format_exception(done.exception)))
    assert done.exit_code in (0, 1, 2)
    assert "Traceback" not in done.output and len(done.stderr) < 8_000
    assert bool(done.exit_code) <= bool(done.stderr.strip())
