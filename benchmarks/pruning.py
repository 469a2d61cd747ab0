"""What pruned heads cost in loss and save in time: ranked by gradient, by removal, and at random.

    python benchmarks/pruning.py          # a small GPT-2 and a small BERT, pruned
    python benchmarks/pruning.py --tasks  # standard models of headwise's seven tasks, heads zeroed

GPT-2 and BERT are those of examples/gate_a_pretrained_model.py, trained on the docstrings of a
package. Heads are ranked on one half of the docstrings that were held out, and the loss is that of
the other half. Time is the processor's, for a forward pass of one batch: the median over rounds of
the ratio of the pruned model's to the whole one's, in turn. A third table has the ratio for the
sizes of GPT-2 (124M), whose weights do not matter to it. The models of tasks are trained by
the shipped recipes for fewer steps, ranked on their validation part, and tested on their test part.
"""

import argparse
import copy
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import AutoTokenizer

import headwise as hw
from headwise.analysis.importance import item_losses
from headwise.data.builtin import paragraphs_of
from headwise.models.inspect import evaluating
from headwise.runs.evaluate import model_of, open_part

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from gate_a_pretrained_model import in_blocks, load, pretrain

Batch = dict[str, Tensor]
Removed = Mapping[str, list[int]]
# The offline recipe of each task, with what makes it short.
RECIPES = {
    "translation": ["interface-strings", "evaluation.beam_size=1"],
    "language modelling": ["lm-pydoc"],
    "masked language modelling": ["mlm-pydoc", "evaluation.draws=1"],
    "images": ["images-digits"],
    "classification": ["classify-docstrings"],
    "probing": ["probing-docstrings"],
    "speech enhancement": ["speech-generated"],
}
STEPS = {"gpt2": 400, "bert": 5000}  # BERT learns the frequencies of tokens alone for much longer
ITEMS = 64  # to rank on, and to test on
SHARES = (0.25, 0.5, 0.75)
RANDOM_ORDERS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    named = {"nargs": "*", "choices": list(RECIPES), "metavar": "TASK"}
    parser.add_argument("--tasks", **named, help="models of these tasks, or of all seven")
    parser.add_argument("--steps", type=int, default=200, help="of training, for each task")
    parser.add_argument("--rounds", type=int, default=15, help="in which time is measured")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as scratch:
        if args.tasks is not None:
            for task in args.tasks or RECIPES:
                print_task(task, Path(scratch), args.steps)
        else:
            print_pruned(Path(scratch), args.rounds)


def print_pruned(folder: Path, rounds: int) -> None:
    transformers.utils.logging.set_verbosity_error()
    texts = paragraphs_of("torch")
    held_out, learned = texts[::5], [text for i, text in enumerate(texts) if i % 5]
    for kind, steps in STEPS.items():
        path = pretrain(kind, learned, folder, steps)
        rank, test = (batches(path, part) for part in (held_out[::2], held_out[1::2]))
        print_curve(kind, load(str(path)), rank, test, rounds)
    print_times(rounds)


def batches(path: Path, texts: list[str]) -> list[Batch]:
    """Blocks of texts; of a masked language model, with one token in seven hidden."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    ids = torch.tensor([block["input_ids"] for block in in_blocks(tokenizer, texts)])
    inputs, labels = ids, ids
    if tokenizer.mask_token_id is not None:
        hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 1 / 7
        inputs, labels = ids.masked_fill(hidden, tokenizer.mask_token_id), ids.clone()
        labels[~hidden] = -100
    pairs = zip(inputs.split(32), labels.split(32), strict=True)
    return [{"input_ids": tokens, "labels": each} for tokens, each in pairs]


def print_curve(
    kind: str, model: nn.Module, rank: list[Batch], test: list[Batch], rounds: int
) -> None:
    orders = rankings(lambda **how: hw.head_importance(model, rank, **how))
    heads = len(orders["by gradient"][0])
    table = Table("heads removed", *orders, "weights", "time")
    for removed in (0, *range(heads // 8, heads - 1, heads // 8)):
        losses = [
            statistics.mean(mean_loss(pruned(model, order.least(removed)), test) for order in each)
            for each in orders.values()
        ]
        smaller = pruned(model, orders["by gradient"][0].least(removed))
        weights = smaller.num_parameters() / model.num_parameters()
        ratio = time_ratio(smaller, model, test[0], rounds)
        cells = [f"{loss:.3f}" for loss in losses]
        table.add_row(f"{removed} of {heads}", *cells, f"{weights:.2f}", f"{ratio:.2f}")
    items = sum(len(batch["labels"]) for batch in test)
    print(f"\n{kind}: loss in nats per token, the mean over {items} blocks of docstrings")
    Console(width=120).print(table)


def rankings(measure: Callable[..., hw.HeadImportance]) -> dict[str, list[hw.HeadImportance]]:
    """By name: an order of the heads, or several whose results are averaged."""
    found = {
        "by gradient": [measure()],
        "by gradient, normalized": [measure(normalized=True)],
        "by removal": [measure(by="removal")],
    }
    some = list(found["by removal"][0])
    draw = random.Random(0)
    shuffled = (draw.sample(some, len(some)) for _ in range(RANDOM_ORDERS))
    return {**found, "at random": [hw.HeadImportance(order) for order in shuffled]}


def pruned(model: nn.Module, heads: Removed) -> nn.Module:
    return hw.prune_heads(copy.deepcopy(model), heads) if heads else model


@torch.no_grad()
def mean_loss(model: nn.Module, test: list[Batch]) -> float:
    return float(torch.cat([item_losses(model, batch)[0] for batch in test]).mean())


def time_ratio(model: nn.Module, whole: nn.Module, batch: Batch, rounds: int) -> float:
    """The median over rounds of a model's time over that of the whole one."""
    ratios = []
    for number in range(rounds + 1):
        pair = [model, whole] if number % 2 else [whole, model]
        seconds = {each: processor_seconds(each, batch) for each in pair}
        ratios.append(seconds[model] / seconds[whole])
    return statistics.median(ratios[1:])  # the first is a warm-up


@torch.no_grad()
def processor_seconds(model: nn.Module, batch: Batch) -> float:
    start = time.process_time()
    model(input_ids=batch["input_ids"])
    return time.process_time() - start


def print_times(rounds: int) -> None:
    """Time and weights of GPT-2's sizes with as many heads removed from each layer."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    batch = {"input_ids": torch.randint(50257, (1, 128))}
    table = Table("heads removed", "weights", "time")
    for removed in (0, 3, 6, 9, 11):
        every = {f"transformer.h.{layer}.attn": list(range(removed)) for layer in range(12)}
        smaller = pruned(model, every if removed else {})
        weights = smaller.num_parameters() / model.num_parameters()
        ratio = time_ratio(smaller, model, batch, max(3, rounds // 3))
        table.add_row(f"{removed} of 12 in each layer", f"{weights:.2f}", f"{ratio:.2f}")
    print("\nGPT-2 (124M), untrained: 128 tokens")
    Console(width=120).print(table)


def print_task(task: str, folder: Path, steps: int) -> None:
    recipe, *changes = RECIPES[task]
    run = folder / recipe
    train(recipe, run, [*changes, f"training.max_steps={steps}"])
    model, rank = opened(run, "validation")
    _, test = opened(run, "test")
    orders = rankings(lambda **how: hw.head_importance(model, rank, loss=loss_of_item, **how))
    whole = loss_without(model, {}, test)
    heads = len(orders["by gradient"][0])
    table = Table(
        f"{task}: {heads} heads, loss {whole:.3f}", *(f"{share:.0%} removed" for share in SHARES)
    )
    for name, each in orders.items():
        rises = [
            statistics.mean(
                loss_without(model, order.least(round(share * heads)), test) - whole
                for order in each
            )
            for share in SHARES
        ]
        table.add_row(name, *(f"{rise:+.3f}" for rise in rises))
    Console(width=120).print(table)


def train(recipe: str, run: Path, changes: Iterable[str]) -> None:
    command = [sys.executable, "-m", "headwise", "train", recipe, "--system", "standard"]
    options = [option for change in changes for option in ("--set", change)]
    subprocess.run([*command, "--output", run, *options], check=True)


def opened(run: Path, part: str) -> tuple[nn.Module, list[Batch]]:
    """The model of a run, and some items of a part of its data, each a batch of its own."""
    found = open_part(run, part, Console(stderr=True))
    items = found.task.parts[part]
    chosen = random.Random(0).sample(range(len(items)), min(ITEMS, len(items)))
    return model_of(found), [found.task.collate([items[number]]) for number in chosen]


def loss_of_item(model: nn.Module, batch: Batch) -> Tensor:
    """`(1,)`, whatever the task's loss is."""
    return model(**batch).token_loss.unsqueeze(0)


@torch.no_grad()
def loss_without(model: nn.Module, heads: Removed, test: list[Batch]) -> float:
    with evaluating(model), ExitStack() as stack:
        for path, removed in heads.items():
            stack.enter_context(hw.ablated(model, path, head=removed))
        return statistics.mean(loss_of_item(model, batch).item() for batch in test)


if __name__ == "__main__":
    main()
