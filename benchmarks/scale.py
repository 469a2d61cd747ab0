"""Memory, preparation and start of a training on a corpus that is larger than one wants in memory.

    python benchmarks/scale.py --pairs 500000,5000000 --folder /tmp/scale

Generates sentence pairs of Zipf-like words with the lengths of translation corpora, prepares them,
and starts two trainings at once, each of which stops after a few steps. It prints how fast data are
prepared, how long a second start takes up to the first step, and the proportional memory (PSS) of
each process when all items have been looked at: a page that two processes share counts half for
each. What has been generated and prepared stays in the folder; give the command again to measure
starts alone.

    python benchmarks/scale.py --pairs 500000 --folder /tmp/scale --steps 200

measures in place of that how long a step of training takes with its items from the disk, over the
same with its items in memory as Python objects: of the model of the demo and of a tiny one. Each
batch is trained on from both, by turns first, and the medians are compared. The time is that of the
processor, which other programs disturb less; the pages are in the system's memory by then.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

_WORDS = 50_000  # different words of each language
_STEPS = 5
_MODELS = {  # settings of those whose steps are timed
    "demo": [],
    "tiny": ["model.embed_dim=32", "model.ffn_dim=32"],
}

# What one of the trainings does, and prints.
_TRAINING = """
import json, sys, time
start, first = time.perf_counter(), None
from headwise.recipes.recipe import load_recipe, task_class
from headwise.runs.run import batches, build_model

def memory():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1e6

recipe = load_recipe("interface-strings", sys.argv[2:]).system("standard")
before = memory()
task = task_class(recipe.task)(recipe)
prepared = time.perf_counter() - start
model, items = build_model(recipe, task), task.parts["train"]
steps = iter(batches(task, "train", recipe.training, seed=1))
for step in range(int(sys.argv[1])):
    loss = model(**next(steps)).loss
    loss.backward()
    if step == 0:
        first = time.perf_counter() - start
for index in range(0, len(items), 100):
    items[index]
print(json.dumps({"prepared": prepared, "first step": first, "memory": memory(), "code": before}))
"""


def main() -> None:
    """Measures each size, and prints the table."""
    options = parse_options()
    cache = options.folder / "cache"
    os.environ["HF_DATASETS_CACHE"] = str(cache.absolute())
    if options.steps:
        print_step_times(options)
        return
    table = Table(title="pairs on the disk")
    for column in (
        "Pairs",
        "Text",
        "Prepared",
        "Cache",
        "Second start",
        "PSS of each",
        "of it code",
    ):
        table.add_column(column, justify="right")
    for pairs in options.pairs:
        folder = options.folder / f"{pairs}"
        size, before = generate(folder, pairs), size_of(cache)
        prepared = start(folder, 0)[0]["prepared"]
        added = size_of(cache) - before  # next to nothing if it was there
        both = start(folder, _STEPS, processes=2)
        table.add_row(
            f"{pairs:,}",
            f"{size / 1e9:.2f} GB",
            f"{prepared:.0f} s, {pairs / prepared:,.0f} pairs/s",
            f"{added / 1e9:.2f} GB, {added / pairs:.0f} bytes a pair",
            f"{max(each['first step'] for each in both):.1f} s",
            f"{max(each['memory'] for each in both):.2f} GB",
            f"{both[0]['code']:.2f} GB",
        )
    Console(width=140).print(table)


def size_of(folder: Path) -> int:
    """Returns the size of all files in a folder in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def generate(folder: Path, pairs: int) -> int:
    """Writes two text files, if they are not there; returns their size in bytes."""
    files = [folder / "train.source", folder / "train.target"]
    if not all(file.is_file() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(1)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        words = [
            "".join(draw.choice(letters, 1 + length)) for length in draw.poisson(5, 2 * _WORDS)
        ]
        # A sentence has 20 words in the mean, its translation about as many.
        lengths = np.clip(draw.lognormal(2.85, 0.6, pairs), 1, 200).astype(int)
        for side, file in enumerate(files):
            partial = file.with_suffix(".partial")
            with partial.open("w", encoding="utf-8") as out:
                for first in range(0, pairs, 100_000):
                    own = np.maximum(1, draw.poisson(lengths[first : first + 100_000]))
                    drawn = (draw.zipf(1.2, own.sum()) - 1) % _WORDS + side * _WORDS
                    for sentence in np.split(drawn, np.cumsum(own)[:-1]):
                        out.write(" ".join(words[word] for word in sentence) + "\n")
            partial.rename(file)
    return sum(file.stat().st_size for file in files)


def start(folder: Path, steps: int, processes: int = 1) -> list[dict[str, float]]:
    """Starts trainings side by side; returns what each has printed."""
    command = [sys.executable, "-c", _TRAINING, str(steps), *changes(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(processes)
    ]
    printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a training has failed")
    return [json.loads(text.splitlines()[-1]) for text in printed]


def changes(folder: Path) -> list[str]:
    """Returns what makes the recipe of the demo one on the generated pairs."""
    return [
        f"data.files.train.source={folder / 'train.source'}",
        f"data.files.train.target={folder / 'train.target'}",
        "data.validation_fraction=0.001",
        "data.test_fraction=0.001",
        "tokenizer.vocab_size=16000",
        "training.batch_tokens=4096",
    ]


def print_step_times(options: argparse.Namespace) -> None:
    """Prints how long a step takes with data from the disk and in memory, of each model."""
    table = Table(title="a step with data from the disk, over one with data in memory")
    for column in ("Pairs", "Model", "Disk", "Memory", "Ratio of medians", "Median of ratios"):
        table.add_column(column, justify="right")
    for pairs in options.pairs:
        folder = options.folder / f"{pairs}"
        generate(folder, pairs)
        for name, sizes in _MODELS.items():
            disk, memory = step_times(folder, sizes, options.steps)
            ratio = median(disk) / median(memory)
            of_pairs = median(a / b for a, b in zip(disk, memory, strict=True))
            milliseconds = (f"{1000 * median(times):.2f} ms" for times in (disk, memory))
            table.add_row(f"{pairs:,}", name, *milliseconds, f"{ratio:.3f}", f"{of_pairs:.3f}")
    Console(width=140).print(table)


def step_times(folder: Path, sizes: list[str], steps: int) -> tuple[list[float], list[float]]:
    """Returns processor seconds of each step with its items from the disk, and from memory."""
    import torch

    from headwise.recipes.recipe import load_recipe, task_class
    from headwise.runs.run import build_model
    from headwise.training.batches import token_batches

    recipe = load_recipe("interface-strings", [*changes(folder), *sizes]).system("standard")
    task = task_class(recipe.task)(recipe)
    model, items = build_model(recipe, task).train(), task.parts["train"]
    optimizer = torch.optim.Adam(model.parameters())
    batches = [batch.tolist() for batch in token_batches(items.lengths, 4096, seed=1)[: steps + 5]]
    in_memory = {index: items[index] for batch in batches for index in batch}

    def from_memory(batch: list[int]) -> list[Any]:
        return [in_memory[index] for index in batch]

    def seconds(read: Callable[[list[int]], list[Any]], batch: list[int]) -> float:
        start = time.process_time()
        model(**task.collate(read(batch))).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - start

    disk: list[float] = []
    memory: list[float] = []
    for number, batch in enumerate(batches):
        both = [(disk, items.__getitems__), (memory, from_memory)]
        for times, read in both if number % 2 else reversed(both):
            times.append(seconds(read, batch))
    return disk[5:], memory[5:]  # the first steps warm up


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[500_000, 5_000_000],
        help="numbers of sentence pairs",
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"))
    parser.add_argument("--steps", type=int, default=0, help="time so many steps instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
