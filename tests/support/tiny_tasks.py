"""Every task with data and models so small that a run of it takes a second."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path


import torch
import yaml

from headwise.training.run import run_training
from support import numerals

TRAINING = {
    "max_steps": 4,
    "learning_rate": 3e-3,
    "warmup_steps": 2,
    "evaluate_every": 2,
    "log_every": 1,
    "mae": {"period": 2, "unit": "steps"},
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


def translation(folder: Path) -> dict:
    numerals.write_recipe(folder)
    return {
        "data": {
            "corpus": "files",
            "train": {"source": f"{folder}/train.en", "target": f"{folder}/train.fr"},
        },
        "tokenizer": {"vocab_size": 280},
        "model": {"encoder_layers": 1, "decoder_layers": 1},
        "training": {"batch_tokens": 300},
        "evaluation": {"beam_size": 2, "max_length_extra": 3},
    }


def language_modelling(folder: Path) -> dict:
    return {
        "data": {"corpus": "files", "train": _text(folder)},
        "tokenizer": {"vocab_size": 280},
        "block_length": 16,
        "model": {"layers": 1},
        "training": {"batch_tokens": 256},
        "evaluation": {"samples": 2, "generation": {"max_new_tokens": 4}},
    }


def masked_language_modelling(folder: Path) -> dict:
    return {
        "data": {"corpus": "files", "train": _text(folder)},
        "tokenizer": {"vocab_size": 280},
        "block_length": 32,
        "model": {"layers": 1},
        "training": {"batch_tokens": 256},
    }


def images(folder: Path) -> dict:
    return {
        "data": {"corpus": "digits", "size": 4},
        "palette": {"colors": 4},
        "model": {"layers": 1},
        "training": {"batch_tokens": 256},
        "evaluation": {"samples": 2, "completions": 2, "maps": 2},
    }


def classification(folder: Path) -> dict:
    rows = [f"{line}\t{'long' if len(line.split()) > 6 else 'short'}" for line in lines(120)]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return {
        "data": {"corpus": "files", "train": f"{folder}/train.tsv", "max_length": 64},
        "tokenizer": {"vocab_size": 280},
        "model": {"layers": 1, "hidden_dim": 8},
        "training": {"batch_tokens": 256},
    }


def probing(folder: Path) -> dict:
    parts = ["tr"] * 80 + ["va"] * 20 + ["te"] * 20
    rows = [
        f"{part}\t{len(line.split()) // 4}\t{line}"
        for part, line in zip(parts, lines(120), strict=True)
    ]
    (folder / "length.txt").write_text("\n".join(rows) + "\n")
    return {
        "data": {"corpus": "senteval", "file": f"{folder}/length.txt", "max_length": 64},
        "tokenizer": {"vocab_size": 280},
        "model": {"layers": 1, "hidden_dim": 8},
        "training": {"batch_tokens": 256},
    }


def speech_enhancement(folder: Path) -> dict:
    return {
        "data": {
            "corpus": "generated",
            "rate": 8000,
            "seconds": 0.5,
            "speakers": 4,
            "utterances": 6,
            "validation_fraction": 0.125,  # three of 24 files
            "test_fraction": 0.125,
            "noise": ["white"],
        },
        "model": {"layers": 1, "front_channels": [16, 16], "predicts": "gain"},
        "training": {"batch_tokens": 100},
        "evaluation": {"pictures": 1},
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


def write_recipe(task: str, folder: Path, **changes: object) -> Path:
    """Write the data of a task and its recipe; returns the recipe's path."""
    recipe = {"task": task, **RECIPES[task](folder), **changes}
    recipe["model"] = {**SIZES, **recipe["model"]}
    recipe["training"] = {**TRAINING, **recipe["training"]}
    recipe["systems"] = {name: {"model": {"attention": plan}} for name, plan in SYSTEMS.items()}
    path = folder / f"{task}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def train_and_go_on(recipe, task, folder: Path) -> list:
    """Train once, and again from the last checkpoint but one; returns both training runs.

    The final weights of both have to be the same.
    """

    def train(name):
        torch.manual_seed(0)
        given = (task.build_model(recipe.model), task.train, task.validation, task.collate)
        return run_training(*given, recipe.training, folder / name)

    once = train("once")
    shutil.copytree(folder / "once", folder / "twice")
    for name in ("model", f"checkpoint-{recipe.training.max_steps}"):
        shutil.rmtree(folder / "twice" / name)
    twice = train("twice")
    for name, weight in once.model.state_dict().items():
        assert torch.equal(weight, twice.model.state_dict()[name]), name
    return [once, twice]


def lines(count: int, seed: int = 0) -> list[str]:
    """Sentences that are easy to learn: runs of numerals, upwards."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        start, length = draw.randrange(10), draw.randrange(3, 12)
        found.append(" ".join(numerals.ENGLISH[(start + i) % 10] for i in range(length)))
    return found


def _text(folder: Path) -> str:
    path = folder / "text.txt"
    path.write_text("\n".join(lines(150)) + "\n", encoding="utf-8")
    return str(path)
