"""Whatever stands behind `headwise`, it ends with 0, 1 or 2, and an error is short and clear.

The commands and their options are those of the program itself. Left out is what waits for somebody
(`--serve`) or opens a browser (`--open`); what trains has a recipe of two steps.
"""

import traceback
from typing import Any

import numerals
import pytest
import typer
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from mutations import ALL_KEYS, SHIPPED, VALUES
from typer.testing import CliRunner

from headwise.cli import app

COMMANDS: dict[str, Any] = dict(typer.main.get_command(app).commands)
TRAINING = ("train", "compare")
LEFT_OUT = ("--serve", "--open")
LONGEST_MESSAGE = 8_000
STDIN = st.one_of(st.just("one two\n"), st.text(max_size=40), st.binary(max_size=20))

FILES = st.sampled_from(
    [
        *("run", "other", "numerals.yaml", "broken.yaml", "none.yaml", "empty", "bytes", "text"),
        *("missing", "missing/x", ".", "/dev/null", "run/model", "train.en", "\x00", "run.png"),
    ]
)
WORDS = st.one_of(
    st.sampled_from(["", " ", "-", "--", "-x", "--no", "=", ",", ",,", "a,b", "a=b", "a=b,c=d"]),
    st.sampled_from(["mae", "mae=uniform", "moa", "x" * 5000, "\u00e9\u202e", "[bold]", "{0}"]),
    st.sampled_from(["0", "-1", "1", "3", "1.5", "nan", "1e30", "9" * 30, "0x1", "1,2", "2,2"]),
    st.text(max_size=12),
)
# What each expects: without it, all would end at the first word that is wrong.
SENSIBLE = {
    "run": ["run", "other"],
    "runs": ["run", "other"],
    "arguments": ["run", "other"],
    "recipe": ["numerals.yaml"],
    "recipes": ["numerals.yaml", *SHIPPED],
    "name": list(SHIPPED),
    "task": ["images", "translation"],
    "source": ["text", "bytes"],
    "target": ["written.wav", "un deux"],
    "prompt": ["one two", ""],
    "system": ["standard", "mae", "moa"],
    "systems": ["standard,mae", "moa"],
    "seeds": ["1", "1,2"],
    "match": ["parameters"],
    "tune": ["training.learning_rate=0.1,0.2"],
    "tune_steps": ["1", "2"],
    "tune_equal": ["0", "0.1"],
    "jobs": ["1"],
    "lengths": ["3,4"],
    "part": ["test", "validation", "train"],
    "data": ["source=train.en,target=train.fr"],
    "against": ["run", "other"],
    "ablate": ["mae=uniform", "mae=without-expert,expert=1"],
    "ablations": ["none", "model"],
    "over": ["training.seed", "model.embed_dim"],
    "score": ["BLEU", "validation loss"],
    "text": ["one two", "three"],
    "item": ["0", "1", "999"],
    "number": ["1", "2"],
    "port": ["0"],
    "output": ["made", "made.html", "run"],
    "changes": ["evaluation.beam_size=1", "evaluation.length_penalty=0.5"],
    "ids": ["W1", "M1"],
    "scale": ["laptop", "gpu", "paper"],
}
# Of these no training becomes long and no model large.
HARMLESS = st.sampled_from(
    [
        *("training.max_steps=1", "training.max_steps=0", "training.max_steps=a", "training=1"),
        *("training.seed=-1", "training.learning_rate=.nan", "training.batch_tokens=1", "model=1"),
        *("model.num_heads=3", "model.attention=x:y", "model.attention=[]", "data.train=x"),
        *("evaluation.beam_size=0", "evaluation.ablation.mae=none", "systems={}", "data=[]"),
    ]
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to work in with recipes, runs and files, whole and not, by the names above."""
    folder = tmp_path_factory.mktemp("place")
    recipe = numerals.write_recipe(folder)
    text = recipe.read_text(encoding="utf-8").replace("max_steps: 6", "max_steps: 2")
    recipe.write_text(text.replace("evaluate_every: 3", "evaluate_every: 2"), encoding="utf-8")
    for name, system in (("run", "mae"), ("other", "standard")):
        line = ["train", str(recipe), "--system", system, "--output", str(folder / name)]
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
    (folder / "empty").mkdir()
    (folder / "broken.yaml").write_text("model: [", encoding="utf-8")
    (folder / "bytes").write_bytes(bytes(range(256)))
    (folder / "text").write_text("one two\nthree\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        yield folder


WRONG_IN_TRAINING = {
    "recipe": FILES,
    "changes": HARMLESS,
    "jobs": st.sampled_from(["0", "-1", "x"]),
}


def seldom(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 7)) == 7


@st.composite
def values(draw: st.DrawFn, command: str, name: str) -> str:
    """What may stand in the place of a parameter: mostly what it expects."""
    if name in SENSIBLE and not seldom(draw):
        return draw(st.sampled_from(SENSIBLE[name]))
    if command in TRAINING and name in WRONG_IN_TRAINING:
        return draw(WRONG_IN_TRAINING[name])
    if name == "changes":
        keys = st.builds("{}={}".format, st.sampled_from(ALL_KEYS), VALUES)
        return draw(st.one_of(HARMLESS, keys, WORDS))
    return draw(WORDS | FILES)


@st.composite
def lines(draw: st.DrawFn, command: str) -> list[str]:
    found = command.split()
    for parameter in COMMANDS[command].params:
        name: Any = parameter.name
        if parameter.param_type_name == "argument":
            # Without a recipe the training of the default would begin, which takes its time.
            least = 1 if name == "recipe" or not seldom(draw) else 0
            most = 1 if parameter.nargs == 1 else draw(st.integers(1, 2))
            found += [draw(values(command, name)) for _ in range(least * most)]
        elif parameter.opts[0] not in LEFT_OUT and (
            parameter.required or name == "ablations" or draw(st.integers(0, 3)) == 3
        ):
            found.append(parameter.opts[0])
            found += [] if parameter.is_flag else [draw(values(command, name))]
    if seldom(draw):
        found.append(draw(WORDS))
    return found


@pytest.mark.parametrize("command", sorted(COMMANDS))
@given(data=st.data())
@examples(suite=2, long=10, shrinks=False)
def test_every_command_line_ends_well(place, few_rounds, command, data):
    line = data.draw(lines(command), label="line")
    done = CliRunner().invoke(app, line, input=data.draw(STDIN, label="standard input"))
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    assert not unexpected, "".join(traceback.format_exception(done.exception))
    assert done.exit_code in (0, 1, 2)
    if done.exit_code:
        assert "Traceback" not in done.output
        assert len(done.stderr) <= LONGEST_MESSAGE
        assert done.stderr.strip()
