"""What it costs to observe a model: forward passes with and without, for each system.

    python benchmarks/analysis.py                    # the demo's size, then a base model
    python benchmarks/analysis.py --size demo --rounds 40
    python benchmarks/analysis.py --size base --systems standard moa --device cuda

Every round runs the same batches plainly, under `hw.record`, under the observer of heads with
nobody who asks for anything, under the likeness of heads, and through all analyses at once; each
time is taken over that of the plain passes in the same round. The table shows the median over
rounds and the range of the middle half. Batches are random sentences of several lengths, padded.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from layers import spread_tokens
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import headwise as hw
from headwise.analysis.decisions.likeness import Likeness
from headwise.analysis.decisions.record import ask
from headwise.models.decisions import heads_read
from headwise.tasks.positions import Positions

SIZES: dict[str, dict[str, Any]] = {
    "demo": {"embed_dim": 128, "num_heads": 8, "ffn_dim": 256, "layers": 2},
    "base": {"embed_dim": 512, "num_heads": 8, "ffn_dim": 2048, "layers": 6},
}
VOCABULARY = 2000
Batch = dict[str, Tensor]
Run = Callable[[nn.Module, list[Batch]], None]


def main() -> None:
    """Measure and print."""
    options = parse_options()
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    for size in options.size:
        batches = [batch(options) for _ in range(options.batches)]
        table = new_table(size, options)
        for name in options.systems:
            model = build(name, size).to(options.device).eval()
            seconds = measure(model, batches, f"{size}, {name}", options)
            add_row(table, name, seconds, options)
        Console().print(table)


def build(name: str, size: str) -> nn.Module:
    """A model of encoder and decoder whose systems stand as in the demo's recipe."""
    sizes = dict(SIZES[size])
    layers, width = sizes.pop("layers"), sizes["embed_dim"]
    plans: dict[str, Any] = {
        "standard": "standard",
        "weighted": "weighted",
        "agreement": {"agreement": "low"},
        "mae": "mae",
        "tim": {"system": "tim", "layers": list(range(1, layers))},
        "moa": {"system": "moa", "size": f"8K16E{width // 4}D"},
    }
    config = hw.Seq2SeqLMConfig(
        vocab_size=VOCABULARY,
        encoder_layers=layers,
        decoder_layers=layers,
        attention=plans[name],
        **sizes,
    )
    model = hw.Seq2SeqLM(config)
    spread_tokens(model)
    return model


def batch(options: argparse.Namespace) -> Batch:
    """Sentences of a quarter of the length to all of it."""
    lengths = torch.randint(options.time // 4, options.time + 1, (options.sentences, 1))
    lengths[0] = options.time
    real = torch.arange(options.time) < lengths
    ids = torch.randint(3, VOCABULARY, (2, options.sentences, options.time)).masked_fill(~real, 0)
    made = {
        "input_ids": ids[0],
        "attention_mask": real.long(),
        "decoder_input_ids": ids[1],
        "decoder_attention_mask": real.long(),
    }
    return {name: tensor.to(options.device) for name, tensor in made.items()}


def plain(model: nn.Module, batches: list[Batch]) -> None:
    """Passes that nobody observes."""
    with torch.no_grad():
        for given in batches:
            model(**given)


def recorded(model: nn.Module, batches: list[Batch]) -> None:
    """Passes whose decisions are recorded, those of one batch at a time."""
    with torch.no_grad():
        for given in batches:
            with hw.record(model):
                model(**given)


def observed(model: nn.Module, batches: list[Batch]) -> None:
    """Passes whose heads are observed."""
    with heads_read(model, lambda place, read: None):
        plain(model, batches)


def compared(model: nn.Module, batches: list[Batch]) -> None:
    """Passes whose heads are compared, with the result."""
    with Likeness(model) as likeness:
        plain(model, batches)
    likeness.result()


def analysed(model: nn.Module, batches: list[Batch]) -> None:
    """All analyses but ablations."""

    def positions(given: Batch) -> dict[str, Positions]:
        names = {"encoder": "input_ids", "decoder": "decoder_input_ids"}
        return {
            stack: Positions(shape=tuple(given[name].shape), tokens=given[name])
            for stack, name in names.items()
        }

    ask(model, batches, positions)


RUNS: dict[str, Run] = {
    "plain": plain,
    "hw.record": recorded,
    "heads_read": observed,
    "likeness of heads": compared,
    "all analyses": analysed,
}


def measure(
    model: nn.Module, batches: list[Batch], what: str, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of each kind of run in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    for number in track(range(options.rounds + options.warmup), what, transient=True):
        for name, run in RUNS.items():
            synchronize(options)
            start = time.perf_counter()
            run(model, batches)
            synchronize(options)
            if number >= options.warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def synchronize(options: argparse.Namespace) -> None:
    """Wait for the device."""
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()


def new_table(size: str, options: argparse.Namespace) -> Table:
    """The columns."""
    sizes = ", ".join(f"{name} {value}" for name, value in SIZES[size].items())
    table = Table(
        title=f"time over plain forward passes; {size}: {sizes}; {options.batches} batches of "
        f"{options.sentences} sentences of up to {options.time}, {options.device}",
        caption=f"torch {torch.__version__}, {torch.get_num_threads()} threads; median and middle "
        f"half of {options.rounds} rounds",
    )
    table.add_column("system")
    table.add_column("plain, ms a batch", justify="right")
    for name in list(RUNS)[1:]:
        table.add_column(name, justify="right")
    return table


def add_row(
    table: Table, name: str, seconds: dict[str, list[float]], options: argparse.Namespace
) -> None:
    """A system's ratios."""
    baseline, *others = seconds.values()
    cells = [f"{statistics.median(baseline) * 1e3 / options.batches:.1f}"]
    for times in others:
        ratios = [mine / its for mine, its in zip(times, baseline, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    table.add_row(name, *cells)


def parse_options() -> argparse.Namespace:
    """The command line."""
    systems = ["standard", "weighted", "agreement", "mae", "tim", "moa"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems)
    parser.add_argument("--batches", type=int, default=5, help="batches of a round")
    parser.add_argument("--sentences", type=int, default=32, help="sentences of a batch")
    parser.add_argument("--time", type=int, default=32, help="length of the longest")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before those")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; 0 for its default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
