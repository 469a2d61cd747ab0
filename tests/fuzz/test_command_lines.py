"""Whatever stands behind `headwise`, it ends with 0, 1 or 2, and an error is short and clear.

The commands and their options are those of the program itself. Left out is what waits for somebody
(`--serve`) or opens a browser (`--open`); what trains has a recipe of two steps.
"""

import os
import traceback

import numerals
import pytest
import typer
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from mutations import ALL_KEYS, SHIPPED, VALUES
from typer.testing import CliRunner

from headwise.cli import app

COMMANDS = typer.main.get_command(app).commands
TRAINING = ("train", "compare")
LEFT_OUT = ("--serve", "--open")
LONGEST_MESSAGE = 8_000
WORDS = st.one_of(
    st.sampled_from(["", " ", "-", "--", "-x", "--nothing", "=", ",", ",,", "a,b", "a=b", "a=b,c=d"]),
    st.sampled_from(["mae", "mae=uniform", "mae=nothing", "moa", "x" * 5000, "é\u202e", "[bold]", "{0}"]),
    st.sampled_from(["none", "model", "test", "train", "data.seed", "parameters", "standard"]),
    st.sampled_from(["0", "-1", "1", "3", "1.5", "nan", "1e30", "9" * 30, "0x1", "1,2", "2,2"]),
    st.text(max_size=12),
)
# Of these no training becomes long and no model large.
HARMLESS = st.sampled_from(
    [
        *("training.max_steps=1", "training.max_steps=0", "training.max_steps=a", "training=1"),
        *("training.seed=-1", "training.learning_rate=.nan", "training.batch_tokens=1", "model=1"),
        *("model.num_heads=3", "model.attention=x:y", "model.attention=[]", "data.train=x", "data=[]"),
        *("evaluation.beam_size=0", "evaluation.ablation.mae=none", "systems={}", "tokenizer=2"),
    ]
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to work in with recipes, runs and files, whole and not, by the names below."""
    folder = tmp_path_factory.mktemp("place")
    recipe = numerals.write_recipe(folder)
    text = recipe.read_text(encoding="utf-8").replace("max_steps: 6", "max_steps: 2")
    recipe.write_text(text.replace("evaluate_every: 3", "evaluate_every: 2"), encoding="utf-8")
    for name in ("run", "other"):
        done = CliRunner().invoke(app, ["train", str(recipe), "--output", str(folder / name)])
        assert done.exit_code == 0, done.output
    (folder / "empty").mkdir()
    (folder / "broken.yaml").write_text("model: [", encoding="utf-8")
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "text").write_text("one two\nthree\n", encoding="utf-8")
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


FILES = st.sampled_from(
    ["run", "run", "other", "numerals.yaml", "numerals.yaml", "broken.yaml", "none.yaml", "empty"]
    + ["bytes", "text", "missing", "missing/x", ".", "/dev/null", "run/model", "train.en", "\x00"]
)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its options, most of them such as it expects."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    found = [name]
    # A recipe is always named: without one, the default's training would take its time.
    recipes = FILES if name in TRAINING else FILES | st.sampled_from(list(SHIPPED))
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            least = 1 if name in TRAINING else draw(st.sampled_from([1, 1, 1, 0]))
            most = least if parameter.nargs == 1 else draw(st.integers(least, 3))
            found += [draw(recipes if name in TRAINING else recipes | WORDS) for _ in range(most)]
            continue
        option = parameter.opts[0]
        if option in LEFT_OUT or not draw(st.sampled_from([True, False, False])):
            continue
        if parameter.is_flag:
            found.append(option)
        elif option == "--set":
            keys = st.builds("{}={}".format, st.sampled_from(ALL_KEYS), VALUES)
            found += [option, draw(HARMLESS if name in TRAINING else HARMLESS | keys | WORDS)]
        elif option == "--jobs":
            found += [option, draw(st.sampled_from(["0", "-1", "x", "1"]))]
        else:
            found += [option, draw(WORDS | FILES)]
    if draw(st.sampled_from([True, False, False, False])):
        found.insert(draw(st.integers(1, len(found))), draw(WORDS))
        if name in TRAINING and not found[1].endswith(".yaml"):
            return [name, "broken.yaml", *found[1:]]
    return found


@given(line=lines())
@examples(suite=60, long=300)
def test_every_command_line_ends_well(place, line):
    done = CliRunner().invoke(app, line, input="one two\n")
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    assert not unexpected, "".join(traceback.format_exception(done.exception))
    assert done.exit_code in (0, 1, 2)
    if done.exit_code:
        assert "Traceback" not in done.output
        assert len(done.stderr) <= LONGEST_MESSAGE
        assert done.stderr.strip()
