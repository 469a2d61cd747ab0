"""Every task with data and a model so small that a run takes a second; and the command line.

recipe = write_recipe("translation", folder)
run("train", recipe, "--system", "mae", "--output", folder / "run")
answer("evaluate", folder / "run")["scores"]
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from click.testing import Result
from typer.testing import CliRunner

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
FRENCH = ["un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix"]

TRAINING = {
    "max_steps": 4,
    "learning_rate": 3e-3,
    "warmup_steps": 2,
    "evaluate_every": 2,
    "log_every": 1,
    "rules": {"mae": {"period": 2, "unit": "steps"}},
}
SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16}
SYSTEMS = {
    "standard": "standard",
    "weighted": "weighted",
    "agreement": "agreement",
    "mae": "mae",
    "tim": {"system": "tim", "layers": "all"},
    "moa": {"system": "moa", "size": "2K4E8D"},
    "gated": "gated",
    "moh": "moh",
}


def lines(count: int, seed: int = 0) -> list[str]:
    """Sentences that are easy to learn: runs of numerals, upwards."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        start, length = draw.randrange(10), draw.randrange(3, 12)
        found.append(" ".join(ENGLISH[(start + i) % 10] for i in range(length)))
    return found


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Different sequences of one to five numerals, and their translations into French."""
    draw = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        digits = [draw.randrange(10) for _ in range(draw.randrange(1, 6))]
        found[" ".join(ENGLISH[d] for d in digits)] = " ".join(FRENCH[d] for d in digits)
    return list(found.items())


def write_lines(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path.as_posix()


def translation(folder: Path) -> dict:
    sources, targets = map(list, zip(*pairs(120), strict=True))
    files = {
        "source": write_lines(folder / "train.en", sources),
        "target": write_lines(folder / "train.fr", targets),
    }
    return {
        "data": {"files": {"train": files}, "validation_fraction": 0.2},
        "tokenizer": {"vocab_size": 280},
        "model": {"encoder_layers": 1, "decoder_layers": 1},
        "training": {"batch_tokens": 300},
        "evaluation": {"beam_size": 2, "max_length_extra": 3, "length_penalty": 3.0},
    }


def language_modelling(folder: Path) -> dict:
    train = write_lines(folder / "text.txt", lines(150))
    return {
        "data": {"files": {"train": train}, "block_length": 16},
        "tokenizer": {"vocab_size": 280},
        "model": {"layers": 1},
        "training": {"batch_tokens": 256},
        "evaluation": {"max_new_tokens": 4},
    }


def masked_language_modelling(folder: Path) -> dict:
    recipe = language_modelling(folder)
    del recipe["evaluation"]
    recipe["data"]["block_length"] = 32
    return recipe


def images(folder: Path) -> dict:
    return {
        "data": {"path": "digits", "size": 4},
        "palette": {"colors": 4},
        "model": {"layers": 1},
        "training": {"batch_tokens": 256},
        "evaluation": {"samples": 2},
    }


def classification(folder: Path) -> dict:
    rows = [f"{line}\t{'long' if len(line.split()) > 6 else 'short'}" for line in lines(120)]
    train = write_lines(folder / "train.tsv", ["text\tlabel", *rows])
    return _classified({"files": {"train": train}})


def probing(folder: Path) -> dict:
    parts = ["tr"] * 80 + ["va"] * 20 + ["te"] * 20
    texts = zip(parts, lines(120), strict=True)
    rows = [f"{part}\t{len(line.split()) // 4}\t{line}" for part, line in texts]
    file = write_lines(folder / "length.txt", rows)
    return _classified({"path": "senteval", "options": {"file": file}})


def _classified(data: dict) -> dict:
    return {
        "data": {**data, "max_length": 64},
        "tokenizer": {"vocab_size": 280},
        "model": {"layers": 1, "hidden_dim": 8},
        "training": {"batch_tokens": 256},
    }


def speech_enhancement(folder: Path) -> dict:
    voices = {"speakers": 4, "utterances": 6, "seconds": 0.5}
    shares = {"validation_fraction": 0.2, "test_fraction": 0.2}
    sounds = {"rate": 8000, "seconds": 0.5, "noise": ["white"], **shares}
    return {
        "data": {"path": "generated", "options": voices, **sounds},
        "model": {"layers": 1, "front_channels": [16, 16], "predicts": "gain"},
        "training": {"batch_tokens": 100},
    }


RECIPES: dict[str, Callable[[Path], dict]] = {
    "translation": translation,
    "language-modelling": language_modelling,
    "masked-language-modelling": masked_language_modelling,
    "classification": classification,
    "probing": probing,
    "images": images,
    "speech-enhancement": speech_enhancement,
}


def write_recipe(task: str, folder: Path, **changes: Any) -> Path:
    """Write the data of a task and its recipe; returns the recipe's path.

    Args:
        changes: sections of the recipe. Those of `model`, `training` and `evaluation` are merged
            into what is there, others take its place.
    """
    recipe = {"task": task, **RECIPES[task](folder)}
    recipe["systems"] = {name: {"model": {"attention": plan}} for name, plan in SYSTEMS.items()}
    under = {"model": SIZES, "training": TRAINING, "evaluation": {}}
    merged = {
        name: {**defaults, **recipe.get(name, {}), **changes.get(name, {})}
        for name, defaults in under.items()
    }
    path = folder / f"{task}.yaml"
    path.write_text(yaml.safe_dump({**recipe, **changes, **merged}), encoding="utf-8")
    return path


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """`headwise ARGUMENTS` in this process: `exit_code`, `stdout`, `stderr`, `exception`."""
    from headwise.cli import app

    return CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)


def answer(*arguments: object, stdin: str | None = None) -> Any:
    """What `headwise ARGUMENTS --json` answers: one document, whose numbers are finite."""
    done = run(*arguments, "--json", stdin=stdin)
    assert done.exit_code == 0, done.output
    return read_json(done.stdout)


def read_json(text: str) -> Any:
    """Parse JSON as browsers and `jq` do, who take neither NaN nor Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def start(*arguments: object, **options: Any) -> subprocess.Popen:
    """`headwise ARGUMENTS` in a process of its own, with a thread."""
    command = [sys.executable, "-m", "headwise", *map(str, arguments)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell that runs tests in the background would have the process ignore Ctrl-C.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    return subprocess.Popen(command, **{"env": environment, **pipes, **heard, **options})
