"""The commands: what they print, where, and how they end."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import soundfile
import tiny_tasks
from rich.console import Console
from torchrun import on_processes
from transformers import pipeline
from typer.testing import CliRunner

from headwise.analysis.ablations.declared import Level
from headwise.cli import app, explaining
from headwise.cli.printing import print_next_commands, print_path
from headwise.cli.using import FORMER
from headwise.recipes import load_recipe, shipped_recipes
from headwise.recipes.shipped import offline_recipes
from headwise.runs import one_run, reading

pytestmark = pytest.mark.usefixtures("few_rounds")

COMMANDS = (
    *("recipes", "keys", "compare", "cost", "train", "evaluate", "curve", "analyse", "explore"),
    "predict",
)


@pytest.fixture(scope="module", autouse=True)
def no_network():
    """No command connects to anything, whatever becomes of the attempt."""
    tried = []

    def refuse(*address, **_):
        tried.append(address)
        raise OSError("there is no network")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", refuse)
        patched.setattr(socket.socket, "connect", refuse)
        yield
    assert tried == []


@pytest.fixture(scope="module")
def run(world):
    """The folder of a finished run."""
    folder = world / "run"
    done = headwise("train", world / "numerals.yaml", "--system", "mae", "--output", folder)
    assert done.exit_code == 0, done.output
    return folder


def headwise(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


def refused(*arguments, stdin=None):
    """What a command says that ends with an error of the user's."""
    done = headwise(*arguments, stdin=stdin)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr.removeprefix("error: ")


# Help


def test_without_a_command_help_is_shown():
    done = headwise()
    for command in COMMANDS:
        assert command in done.output


def test_recipes_are_listed_one_a_line(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    listed = {
        papers: headwise("recipes", *(["--papers"] if papers else [])).stdout
        for papers in (False, True)
    }
    for name in shipped_recipes():
        line = rf"^{name} +[\w?]+.*$"
        offline = name in offline_recipes()
        assert re.search(line, listed[not offline], re.MULTILINE)
        assert not re.search(line, listed[offline], re.MULTILINE)
    assert re.search(
        r"^lm-pydoc +521k +33,000 words +600 steps +7 +– +Language modelling", listed[False], re.M
    )


def test_a_recipe_can_be_printed_to_start_ones_own(world):
    done = headwise("recipes", "multi30k-en-de")
    assert done.stdout == shipped_recipes()["multi30k-en-de"]
    own = world / "numerals.yaml"
    assert headwise("recipes", own).stdout == own.read_text(encoding="utf-8")
    assert "did you mean 'multi30k-en-de'?" in refused("recipes", "multi30kk")


def test_keys_are_listed_by_task():
    shared = headwise("keys")
    assert "training.max_steps" in shared.stdout and "images" in shared.stdout
    images = headwise("keys", "images")
    assert "palette.colors" in images.stdout and "training.max_steps" not in images.stdout
    assert "did you mean 'images'?" in refused("keys", "imags")


def test_keys_are_found_by_a_part_of_the_name():
    found = headwise("keys", "learning_rate").stdout
    assert "training.learning_rate" in found and "training.mae.learning_rate" in found
    assert "training.max_steps" not in found
    assert headwise("keys", "speech").stdout == headwise("keys", "speech-enhancement").stdout


def test_help_groups_commands_and_says_what_may_stand_there(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = headwise("--help").stdout
    places = [said.index(f"─ {group} ─") for group in ("Train", "Look inside", "Use")]
    assert places == sorted(places)
    for command in (*COMMANDS, *FORMER, "analyze"):
        of_command = headwise(*command.split(), "--help").stdout
        assert "bool" not in of_command, command
        if re.search(r"--set\b", of_command):
            finished = command not in ("compare", "cost", "train")
            assert ("evaluation." in of_command) == finished
            assert ("training.max_steps" in of_command) != finished
    assert "<none|model|units|all>" in headwise("analyze", "--help").stdout


# Predict


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of finished runs of other tasks, trained when they are asked for."""
    found = {}

    def finished(task, *options):
        key = (task, *options)
        if key not in found:
            folder = tmp_path_factory.mktemp(task)
            recipe = tiny_tasks.write_recipe(task, folder)
            command = ("train", recipe, "--system", "mae", "--output", folder / "run")
            done = headwise(*command, *options)
            assert done.exit_code == 0, done.output
            found[key] = folder / "run"
        return found[key]

    return finished


def test_predict_goes_on_from_each_prompt(trained):
    run = trained("language-modelling")
    arguments = ("predict", run, "--prompt", "one two", "--prompt", "three", "--number", "2")
    done = headwise(*arguments)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.split("\n") if line.startswith(("one two", "three"))]
    assert [line.startswith("one two") for line in lines] == [True, False, True, False]
    assert headwise(*arguments).stdout == done.stdout
    other = headwise(*arguments, "--set", "evaluation.generation.seed=9")
    assert other.stdout != done.stdout


def test_predict_labels_each_line_or_each_pair_of_them(trained, tmp_path):
    lines = [" one  two three ", "", "four\tfive six"]
    said = refused("predict", trained("classification"), stdin="\n".join(lines))
    assert "INPUT has the line 'four\\tfive six', expected one text without a tab" in said
    run = trained("classification", "--set", "data.pair_field=label")
    for wrong in ("one two three", "", "one\ttwo\tthree"):
        said = refused("predict", run, stdin=f"four\tfive six\n{wrong}\n")
        assert f"INPUT has the line {wrong!r}, expected two texts with one tab between" in said
    lines = [" one  two three \tfour", "four\tfive six"]
    done = headwise("predict", run, stdin="\n".join(lines))
    assert done.exit_code == 0, done.output
    said = [line.split("\t") for line in done.stdout.splitlines()]
    classify = pipeline("text-classification", model=str(run / "model"))
    given = [
        {"text": "one two three", "text_pair": "four"},
        {"text": "four", "text_pair": "five six"},
    ]
    for (label, probability), found in zip(said, [classify(each) for each in given], strict=True):
        found = found[0] if isinstance(found, list) else found
        assert label == found["label"]
        assert float(probability) == pytest.approx(found["score"], abs=1e-4)


def test_predict_fills_in_each_mask(trained):
    run = trained("masked-language-modelling")
    fill = pipeline("fill-mask", model=str(run / "model"))
    line = "one <mask> three four"
    done = headwise(
        "predict", run, "--text", f"{line} ", "--text", "", "--text", "<mask> two <mask>"
    )
    assert done.exit_code == 0, done.output
    first, empty, last = done.stdout.splitlines()
    assert (first, empty) == (fill(line)[0]["sequence"], "")
    assert "<mask>" not in last and "two" in last
    assert "INPUT has the line 'one two', expected <mask> in" in refused("predict", run, "one two")
    assert "tokens, expected at most 32, the block_length" in refused("predict", run, line * 20)


def test_predict_draws_images(trained, tmp_path):
    picture = tmp_path / "drawn.png"
    done = headwise("predict", trained("images"), "--output", picture, "--number", "3")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"written: {picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = refused("predict", trained("images"), "--output", tmp_path / "drawn.jpg")
    assert "drawn.jpg, expected a name that ends in .png" in said
    assert [path.name for path in tmp_path.iterdir()] == ["drawn.png"]


def test_predict_writes_a_recording_as_long_as_the_other(trained, tmp_path):
    noisy, clean = tmp_path / "noisy.wav", tmp_path / "clean.wav"
    soundfile.write(noisy, 0.1 * np.random.default_rng(0).standard_normal(12_345), 44_100)
    done = headwise("predict", trained("speech-enhancement"), noisy, clean)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"written: {clean}\n"
    as_option = tmp_path / "option.wav"
    done = headwise("predict", trained("speech-enhancement"), noisy, "--output", as_option)
    assert done.exit_code == 0, done.output
    assert as_option.read_bytes() == clean.read_bytes()
    assert soundfile.info(clean).frames == 12_345
    assert soundfile.info(clean).samplerate == 44_100


@pytest.mark.parametrize("content", [b"", b"RIFF", b"no sound at all"])
def test_predict_of_what_is_no_sound_writes_nothing(trained, tmp_path, content):
    noisy = tmp_path / "noisy.wav"
    noisy.write_bytes(content)
    said = refused("predict", trained("speech-enhancement"), noisy, tmp_path / "clean.wav")
    assert str(noisy) in said
    assert {path.name for path in tmp_path.iterdir()} == {"noisy.wav"}
    said = refused("predict", trained("speech-enhancement"), tmp_path, tmp_path / "clean.wav")
    assert f"{tmp_path} is not a file, expected a WAV or FLAC file" in said


def test_a_run_of_another_task_cannot_do_it(run, trained, tmp_path):
    said = refused("enhance", run, "in.wav", "out.wav")
    assert "is a run of translation, expected a run of speech-enhancement" in said
    said = refused("translate", trained("images"), stdin="one")
    assert "is a run of images, expected a run of translation" in said
    said = refused("generate", run)
    assert "expected a run of language-modelling or images; `headwise predict` takes" in said


NO_USE = [
    ("translation", "--number 2", "--number is not for a run of translation: it makes one"),
    ("translation", "--output a.txt", "--output is not for a run of translation: its pred"),
    ("translation", "missing.txt", "INPUT is 'missing.txt', expected a file that is there, or a"),
    ("classification", "--number 1", "--number is not for a run of classification: it makes one"),
    ("masked-language-modelling", "--output a", "--output is not for a run of masked-language-m"),
    ("language-modelling", "--output a.png", "--output is not for a run of language-modelling"),
    ("images", "--text one", "--text is not for a run of images: it draws of no input"),
    ("images", "one", "INPUT is not for a run of images: it draws of no input"),
    ("speech-enhancement", "--text one", "--text is not for a run of speech-enhancement: it reads"),
    ("speech-enhancement", "--number 2", "--number is not for a run of speech-enhancement"),
    ("speech-enhancement", "in.wav", "INPUT and --output name 1 files, expected two: the noisy"),
]


@pytest.mark.parametrize(("task", "options", "said"), NO_USE)
def test_predict_refuses_what_the_task_has_no_use_for(run, trained, task, options, said):
    folder = run if task == "translation" else trained(task)
    assert said in refused("predict", folder, *options.split(), stdin="")


def test_former_commands_do_what_predict_does(run, trained, tmp_path):
    text = trained("language-modelling")
    (tmp_path / "source.txt").write_text("one two\n")
    for former, arguments in (
        ("translate", (run, tmp_path / "source.txt")),
        ("generate", (text, "--prompt", "one two", "--number", "2")),
    ):
        assert headwise(former, *arguments).stdout == headwise("predict", *arguments).stdout != ""
    assert (
        headwise("predict", text, "one two").stdout
        == headwise("predict", text, "--text", "one two").stdout
    )
    noise = 0.1 * np.random.default_rng(0).standard_normal(500)
    soundfile.write(tmp_path / "in.wav", noise, 16_000)
    files = (tmp_path / "in.wav", tmp_path / "out.wav")
    assert headwise("enhance", trained("speech-enhancement"), *files).exit_code == 0
    assert soundfile.info(files[1]).frames == 500


# Train, evaluate


def test_train_prints_what_it_read_did_and_left(world):
    folder = world / "[printed]"
    done = headwise("train", world / "numerals.yaml", "--system", "moa", "--output", folder)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "corpus: text files train.en, train.fr"
    assert lines[1].startswith("train: ")
    assert re.search(
        r"^moa: step 3/6 loss \d\.\d+ valid \d\.\d+ [\d,]+ tokens/s$", done.stdout, re.M
    )
    assert re.search(r"^validation loss \d\.\d{3}  BLEU .*chrF", done.stdout, re.M)
    assert lines[-3:] == [  # the brackets of its name are quoted
        f"model: {folder / 'model'}",
        f"what its heads do: headwise analyse '{folder}'",
        f"watch it at work: headwise explore '{folder}'",
    ]


def test_train_says_that_it_has_diverged(world):
    arguments = ("train", world / "numerals.yaml", "--output", world / "diverged")
    changes = ("training.learning_rate=1e30", "training.warmup_steps=0")
    for _ in range(2):  # also of a run that is there already
        done = headwise(*arguments, *(part for change in changes for part in ("--set", change)))
        assert done.exit_code == 1
        assert "validation loss nan" in done.stdout
        assert done.stderr.rpartition("error: ")[2].startswith(
            "the training has diverged: its validation loss is nan; train into another folder with"
        )
        assert "Traceback" not in done.stderr


def test_evaluate_gives_the_scores_of_the_run(run):
    done = headwise("evaluate", run)
    assert done.exit_code == 0
    bleu, chrf = json.loads((run / "result.json").read_text())["scores"]
    assert re.search(r"^test: \d+ sentences$", done.stdout, re.M)
    interval = f"[{bleu['low']:.2f}, {bleu['high']:.2f}]"
    assert f"BLEU {bleu['value']:.2f} {interval}  {bleu['note']}" in done.stdout
    assert f"chrF {chrf['value']:.2f} [" in done.stdout
    assert chrf["note"] in done.stdout


def test_evaluate_takes_another_part_and_other_settings(run):
    done = headwise("evaluate", run, "--part", "validation", "--set", "evaluation.bleu=tokenized")
    assert done.exit_code == 0
    assert re.search(r"^validation: \d+ sentences$", done.stdout, re.M)
    assert "smooth:none" in done.stdout


@pytest.mark.parametrize("option", [["--text"], []])
def test_predict_refuses_text_that_is_not_utf8(run, option):
    said = refused("predict", run, *option, "caf\udce9 x")
    assert r"INPUT or --text is 'caf\udce9 x', expected text in UTF-8" in said


def test_predict_gives_a_line_for_each_line(run, tmp_path):
    lines = ["one two", "", "three\u2028four", "   ", "five"]
    source = tmp_path / "source.txt"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    of_file = headwise("predict", run, source)
    assert of_file.exit_code == 0
    translated = of_file.stdout.split("\n")
    assert len(translated) == len(lines) + 1
    assert [bool(line) for line in translated] == [True, False, True, False, True, False]
    of_stdin = headwise("predict", run, stdin="\r\n".join(lines) + "\r\n")
    assert of_stdin.stdout == of_file.stdout
    without_end = headwise("predict", run, stdin="\n".join(lines))
    assert without_end.stdout == of_file.stdout
    around = headwise("predict", run, stdin="\n".join(f" {line} " for line in lines))
    assert around.stdout == of_file.stdout


# Compare


@pytest.mark.slow
def test_compare_leaves_figures_and_a_report(world, monkeypatch):
    folder = world / "compared"
    arguments = ("compare", world / "numerals.yaml", "--systems", "mae, standard")
    arguments += ("--seeds", "1,3", "--output", folder)
    monkeypatch.setattr(sys, "argv", ["headwise", *map(str, arguments)])
    done = headwise(*arguments)
    assert done.exit_code == 0, done.output
    found = json.loads((folder / "comparison.json").read_text())
    assert [system["name"] for system in found["systems"]] == ["mae", "standard"]
    assert [run["seed"] for run in found["systems"][0]["runs"]] == [1, 3]
    assert found["command"].startswith("headwise compare ")
    assert "'mae, standard'" in found["command"]  # can be pasted into a shell
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert report.lstrip().startswith("<!")
    report_line, *following = done.stdout.splitlines()[-3:]
    assert report_line == f"report: {folder / 'report.html'}"
    run = folder / "mae-seed1"  # the other system decides nothing
    assert [line.split()[-1] for line in following] == [str(run)] * 2
    assert not [path for path in folder.rglob("*") if "partial" in path.name]

    # Once more, nothing is trained, and the figures are the same but for the time of a step.
    monkeypatch.setattr(one_run, "run_training", None)
    assert headwise(*arguments).exit_code == 0
    again = json.loads((folder / "comparison.json").read_text())
    for system in (*found["systems"], *again["systems"]):
        del system["relative_step_time"], system["how_soon"]
    assert again == found


# Cost


def test_cost_has_a_row_for_each_system_of_each_recipe(world):
    done = headwise("cost", world / "numerals.yaml", "interface-strings", "--systems", "mae,moa")
    assert done.exit_code == 2  # the second has no system of that name
    assert "there is no system 'mae' in recipe interface-strings" in done.stderr
    done = headwise("cost", world / "numerals.yaml", "interface-strings", "--lengths", "7, 3")
    assert done.exit_code == 0, done.output
    rows = [line.split()[0] for line in done.stdout.splitlines() if re.match(r" \w\S* +\d", line)]
    demo = load_recipe("interface-strings").system_names
    assert rows == ["standard", "mae", "moa", *demo]
    assert "7 source and 3" in done.stdout
    assert not list(world.glob("runs"))


def test_cost_of_a_recipe_without_systems_is_that_of_its_model(world):
    done = headwise("cost", world / "numerals.yaml", "--set", "systems={}")
    assert re.search(r"^ model +\d", done.stdout, re.M)


def test_cost_of_the_papers():
    done = headwise("cost", "--papers")
    assert done.exit_code == 0, done.output
    assert "16K32E256D" in done.stdout
    assert "figures agree" in done.stdout


# What is refused


WRONG = [
    ("train interface-string", "did you mean 'interface-strings'?"),
    ("train RECIPE --set training.max_step=1", "did you mean 'max_steps'?"),
    ("train RECIPE --system ma", "there is no system 'ma'"),
    ("compare RECIPE --systems standard,ma", "there is no system 'ma'"),
    ("compare RECIPE --systems mae,mae", "--systems is 'mae,mae', expected different names"),
    ("compare RECIPE --set training", "expected key.key=value"),
    ("compare RECIPE --set systems={}", "names no systems"),
    ("compare RECIPE --set model.attention=moa", "would give every system the same attention"),
    ("compare RECIPE --tune model.dropuot=0,0.1", "did you mean 'dropout'?"),
    *(
        (f"compare RECIPE --seeds={seeds}", f"--seeds is {seeds!r}, expected")
        for seeds in ("one", "1,,x", "1,1", ",", "-1", "1.5")
    ),
    *(
        (f"compare RECIPE --jobs={jobs}", f"--jobs is {jobs}, expected a whole number from 1")
        for jobs in ("0", "-2")
    ),
    *(
        (f"cost --lengths={lengths}", f"--lengths is {lengths!r}, expected the lengths of the enc")
        for lengths in ("10", "10,0", "a,b", "1,2,3", "")
    ),
    ("evaluate RUN --set evaluation.beam_sise=1", "did you mean 'beam_size'?"),
    ("evaluate RUN --set training.seed=2", "a finished run does not read training.seed"),
    ("evaluate RUN --ablate mae=unifrm", "did you mean 'uniform'?"),
    ("evaluate RUN --against none", "none is not a run of headwise"),
    ("evaluate RUN --part tset", "--part is 'tset', expected one of train, validation, test"),
    ("explore RUN --set evaluation.beam_sise=1", "did you mean 'beam_size'?"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_what_is_wrong_is_named_before_anything_is_written(world, run, line, said):
    named = {"RECIPE": world / "numerals.yaml", "RUN": run}
    arguments = [named.get(word, word) for word in line.split()]
    if arguments[0] == "compare":
        arguments += ["--output", world / "never"]
    assert said in refused(*arguments)
    assert not (world / "never").exists() and not (world / "runs").exists()


def test_a_failed_run_is_named_at_the_end(world, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no batch")

    monkeypatch.setattr(one_run, "run_training", broken)
    done = headwise("compare", world / "numerals.yaml", "--output", tmp_path / "failed")
    assert done.exit_code == 1
    assert "error: 3 of 3 runs failed:\n  standard: RuntimeError: no batch\n" in done.stderr
    assert done.stderr.endswith("The same command tries again.\n")
    assert "report.html" not in done.stdout  # there is nothing to report


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_what_is_no_run(tmp_path, command):
    said = refused(command, tmp_path)
    assert f"{tmp_path} is not a run of headwise: it has no recipe.yaml" in said


def test_a_run_under_a_changed_recipe_shows_the_difference(run, world):
    before = sorted(path.name for path in run.iterdir())
    arguments = ("train", world / "numerals.yaml", "--system", "mae", "--output", run)
    said = refused(*arguments, "--set", "training.learning_rate=0.5")
    assert "holds a run of another recipe" in said
    assert "training.learning_rate: 0.003 before, 0.5 now" in said
    assert sorted(path.name for path in run.iterdir()) == before


def test_a_folder_of_other_things(world, tmp_path):
    (tmp_path / "thesis.tex").touch()
    for command in ("train", "compare"):
        said = refused(command, world / "numerals.yaml", "--output", tmp_path)
        assert "holds other things (thesis.tex)" in said
    said = refused("train", world / "numerals.yaml", "--output", tmp_path / "thesis.tex")
    assert "thesis.tex is a file" in said
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_page_of_a_curve_is_no_folder(run, tmp_path):
    said = refused("curve", run, "--over", "training.seed", "--output", tmp_path)
    assert f"{tmp_path} is a folder, expected the name of a file" in said


def test_names_of_folders_are_printed_as_they_are(capsys):
    folder = Path("runs/mae[/bold]:smile:")
    print_path(Console(), "model", folder)
    print_next_commands(Console(), folder)
    assert capsys.readouterr().out.count("mae[/bold]:smile:") == 3


def test_mistakes_of_ours_keep_their_traceback(run, monkeypatch):
    def broken(*_):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(reading, "open_run", broken)
    assert isinstance(headwise("predict", run).exception, KeyError)


# Stopping


STOPPED = """
import os, signal, sys
from headwise.cli import app
from headwise.tasks import translation

join = translation.collate_tokens
def interrupted_in_the_second_step(items, padding):
    interrupted_in_the_second_step.calls += 1
    if interrupted_in_the_second_step.calls == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return join(items, padding)
interrupted_in_the_second_step.calls = 0
translation.collate_tokens = interrupted_in_the_second_step
sys.argv = ["headwise", *sys.argv[1:]]
app()
"""


@pytest.mark.slow
def test_ctrl_c_in_training(world):
    folder = world / "stopped"
    arguments = ["train", str(world / "numerals.yaml"), "--output", str(folder)]
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped at step 2. The same command goes on from here." in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert (folder / "checkpoint-2").is_dir()
    assert not (folder / "result.json").exists()

    done = headwise(*arguments)
    assert done.exit_code == 0
    assert "step 6/6" in done.stdout
    whole = headwise(*arguments[:2], "--output", world / "whole")
    assert whole.exit_code == 0
    results = [
        json.loads((world / name / "result.json").read_text()) for name in ("stopped", "whole")
    ]
    for kind in ("loss", "eval_loss"):
        curves = [[r[kind] for r in result["history"] if kind in r] for result in results]
        assert curves[0] == pytest.approx(curves[1], abs=1e-5)


# Several processes


@pytest.mark.slow
def test_compare_with_two_processes_gives_the_losses_of_one(world):
    changes = [
        *("--set", "model.dropout=0", "--set", "training.max_steps=3"),
        *("--set", "training.mae.learning_rate=0.5"),
    ]
    attention = "{encoder_self: {system: mae, gate_dropout: 0}, decoder_self: moa}"
    changes += ["--set", f"systems.mae.model.attention={attention}"]
    changes += ["--tune", "training.learning_rate=3e-3,1e-3"]
    compare = ["compare", str(world / "numerals.yaml"), "--systems", "standard,mae", *changes]
    compare += ["--output"]
    printed = on_processes(2, "-m", "headwise", *compare, world / "two", timeout=300)
    assert printed.count("report: ") == 1  # one process prints
    assert headwise(*compare, world / "one").exit_code == 0
    two, one = (
        json.loads((world / name / "comparison.json").read_text())["systems"]
        for name in ("two", "one")
    )
    for of_two, of_one in zip(two, one, strict=True):
        assert of_two["name"] == of_one["name"]
        assert of_two["tuning"]["chosen"] == of_one["tuning"]["chosen"]
        curves = [
            [r.get("loss", r.get("eval_loss")) for r in system["runs"][0]["history"]]
            for system in (of_two, of_one)
        ]
        assert curves[0] == pytest.approx(curves[1], abs=1e-4)


def test_the_levels_of_ablations_are_those_of_the_analysis() -> None:
    assert [level.value for level in explaining.Level] == list(get_args(Level))
