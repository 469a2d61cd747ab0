"""A recipe of which a run takes a second, a system that makes trouble, and who has seen which data.

Texts of some words are to be told apart. Each part of the data has a file of its own, so that one
can be changed and looked for.
"""

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from support import tiny_tasks
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

STEPS, EVALUATE_EVERY = 6, 3
BATCH_TOKENS, MAX_LENGTH = 256, 64
PARTS = {"train": 150, "validation": 40, "test": 80}  # the number of texts of each
WORDS = ("red", "green", "blue", "round", "square", "long", "short", "old", "new", "warm")

# What happens to `troubled` in its fourth step, behind a checkpoint, while the file stands there.
# Of several words in it, the seed selects one.
TROUBLE = """
import os, signal, time
from pathlib import Path

import torch

import headwise as hw

TROUBLE = Path({trouble!r})


class Troubled(hw.MultiHeadAttention):
    steps = 0

    def forward(self, *inputs, **options):
        self.steps += self.training
        if self.steps > 3 and self.training and TROUBLE.exists():
            troubles = TROUBLE.read_text().split()
            trouble = troubles[torch.initial_seed() % len(troubles)]
            TROUBLE.with_name("at-work").write_text(f"{{os.getpid()}} {{os.getppid()}}")
            if trouble == "raises":
                raise RuntimeError("no heads today")
            if trouble == "waits":
                while TROUBLE.exists():
                    time.sleep(0.02)
            else:
                os.kill(os.getpid(), getattr(signal, trouble))
        return super().forward(*inputs, **options)
"""


def write_world(folder: Path) -> Path:
    """Writes the data, the recipe and the module of `troubled`; returns the recipe's path.

    The module is imported, as a plan's own classes have to be: the folder is on Python's path.
    """
    training = {"max_steps": STEPS, "evaluate_every": EVALUATE_EVERY, "learning_rate": 0.02}
    files = {part: f"{folder}/{part}.tsv" for part in PARTS}
    recipe = tiny_tasks.write_recipe(
        "classification",
        folder,
        data={"files": files, "max_length": MAX_LENGTH},
        training=training | {"batch_tokens": BATCH_TOKENS, "record_decisions": False},
        systems={
            "standard": {},
            "gated": {"model": {"attention": "gated"}},
            "moa": {"model": {"attention": {"system": "moa", "size": "2K4E8D"}}},
            "troubled": {"model": {"attention": "trouble_maker:Troubled"}},
            "diverging": {"training": {"learning_rate": 1.0e30}},
        },
    )
    for number, part in enumerate(PARTS):
        write_part(folder, part, seed=number)
    module = TROUBLE.format(trouble=str(folder / "trouble"))
    (folder / "trouble_maker.py").write_text(module, encoding="utf-8")
    sys.modules.pop("trouble_maker", None)  # of another world, whose troubles are its own
    importlib.invalidate_caches()
    importlib.import_module("trouble_maker")
    return recipe


def write_part(folder: Path, part: str, seed: int) -> None:
    """Writes as many different texts as a part has, with their labels."""
    draw, texts = random.Random(seed), {}
    while len(texts) < PARTS[part]:
        words = [draw.choice(WORDS) for _ in range(draw.randrange(4, 10))]
        colours = sum(WORDS.index(word) < 3 for word in words)
        texts[" ".join(words)] = "bright" if 3 * colours > len(words) else "dull"
    rows = [f"{text}\t{label}" for text, label in texts.items()]
    tiny_tasks.write_lines(folder / f"{part}.tsv", ["text\tlabel", *rows])


def texts_of(folder: Path, part: str) -> dict[str, str]:
    """The texts of a part to their labels."""
    lines = (folder / f"{part}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return dict(line.split("\t") for line in lines)


def tokens_of(folder: Path, part: str, run: Path) -> dict[tuple[int, ...], str]:
    """The texts of a part as a run's model reads them, to their labels."""
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    encoded = (
        (tokenizer(text)["input_ids"], label) for text, label in texts_of(folder, part).items()
    )
    return {tuple(ids[:MAX_LENGTH]): label for ids, label in encoded}


class Seen:
    """What one model was given: in training its batches, and in evaluation all texts.

    A text is its tokens without padding.
    """

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, ...]]] = []
        self.evaluated: set[tuple[int, ...]] = set()


@contextmanager
def watched() -> Iterator[list[Seen]]:
    """While this context is open, what models are given is noted: an entry a model, in order."""
    seen: list[Seen] = []
    seen_by_model: dict[nn.Module, Seen] = {}  # which keeps them, so that no two are one

    def note(model: nn.Module, _: tuple, options: dict, __: object) -> None:
        ids, mask = options.get("input_ids"), options.get("attention_mask")
        if not isinstance(model, PreTrainedModel) or ids is None or ids.is_meta:
            return
        if model not in seen_by_model:
            seen_by_model[model] = Seen()
            seen.append(seen_by_model[model])
        mask = torch.ones_like(ids) if mask is None else mask
        rows = [tuple(row[real.bool()].tolist()) for row, real in zip(ids, mask, strict=True)]
        if model.training:
            seen_by_model[model].batches.append(rows)
        else:
            seen_by_model[model].evaluated.update(rows)

    hook = torch.nn.modules.module.register_module_forward_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()
