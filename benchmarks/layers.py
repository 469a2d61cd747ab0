"""Speed of a whole encoder layer of each system beside the standard one, forward and backward.

    python benchmarks/layers.py                       # d=512, ffn 2048, batch 16, time 128
    python benchmarks/layers.py --norm pre            # with pre-norm
    python benchmarks/layers.py --memory              # peak memory instead
    python benchmarks/layers.py --model               # training steps of a base model
    python benchmarks/layers.py --device cuda --batch 64 --time 512

A layer is attention, feed-forward, residual sums and norms, as a model's plan builds them: the
Weighted Transformer takes the place of attention and feed-forward, TIM that of all of it. Every
round runs all layers on the same input, one after the other, and takes each time over that of the
standard layer in the same round; the table shows the median over rounds and the range of the
middle half. Routing by agreement compiles its routing where that pays; it also runs without.

`--model` does the same for training steps (forward, backward, Adam) of a model with 6 + 6 layers,
standard against routing by agreement in the encoder's first two layers, as in table 4 of its paper.

`--memory` shows the largest sum of what a layer's forward and backward pass hold at one time,
gradients of weights included, beyond what there was before. On the CPU it is summed up from every
allocation and release that PyTorch's profiler reports, on CUDA it is the allocator's own count.
Its unit is the votes tensor of routing by agreement, batch × time × heads × embed_dim numbers.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import headwise as hw
from headwise.models.modeling import Stack

LAYERS: dict[str, dict[str, Any]] = {
    "standard": {"system": "standard"},
    "weighted": {"system": "weighted"},
    "weighted to the letter": {
        "system": "weighted",
        "inner": "none",
        "ffn": "shared",
        "start": "random",
    },
    "agreement, EM": {"system": "agreement"},
    "agreement, simple": {"system": "agreement", "routing": "simple"},
    "agreement, EM, not compiled": {"system": "agreement"},
    "agreement, simple, not compiled": {"system": "agreement", "routing": "simple"},
    "mae": {"system": "mae"},
    "tim, 2 mechanisms": {"system": "tim", "num_mechanisms": 2},
    "moa": {"system": "moa", "size": "8K32E64D"},
}
MODELS: dict[str, Any] = {"standard": "standard", "agreement, EM, low": {"agreement": "low"}}
Step = Callable[[], object]


def main() -> None:
    """Measure and print."""
    options = parse_options()
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    contenders = model_steps(options) if options.model else layer_steps(options)
    if options.memory:
        bytes_held = {name: peak_memory(step, options) for name, step in contenders.items()}
        Console().print(memory_table(bytes_held, options))
        return
    what = "training step" if options.model else "layer"
    seconds = in_turns(contenders, options)
    Console().print(ratios_table(seconds, what, f"{sizes(options)}, {options.rounds} rounds"))


def in_turns(contenders: dict[str, Step], options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each contender in each round, but for the first ones, which warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in track(range(options.rounds + options.warmup), "measuring", transient=True):
        for name, step in contenders.items():
            taken = time_of(step, options)
            if round_number >= options.warmup:
                seconds[name].append(taken)
    return seconds


def layer_steps(options: argparse.Namespace) -> dict[str, Step]:
    """A forward and backward pass of each layer, on the same input."""
    x = torch.randn(options.batch, options.time, options.dim, device=options.device)
    x = x.to(getattr(torch, options.dtype))
    steps = {}
    for name in options.layers or LAYERS:
        layer = encoder_layer(LAYERS[name], options).to(x.device, x.dtype).train()
        spread_tokens(layer)
        wish = {"HEADWISE_COMPILE": "0"} if name.endswith("not compiled") else {}
        steps[name] = lambda layer=layer, wish=wish: forward_backward(layer, x, wish)
    return steps


def encoder_layer(system: dict[str, Any], options: argparse.Namespace) -> nn.Module:
    """The only layer of an encoder."""
    config = hw.Seq2SeqLMConfig(
        vocab_size=8,
        embed_dim=options.dim,
        num_heads=options.heads,
        ffn_dim=4 * options.dim,
        encoder_layers=1,
        decoder_layers=1,
        attention={"encoder_self": {**system, "layers": [0]}},
        norm=options.norm,
        dropout=0.0,
    )
    return Stack(config, "encoder").layers[0]


def spread_tokens(model: nn.Module) -> None:
    """Draws routers anew, which start at zero: tokens spread over experts, as in training."""
    for module in model.modules():
        if hasattr(module, "router"):
            nn.init.normal_(module.router.weight)


def forward_backward(layer: nn.Module, x: Tensor, environment: dict[str, str]) -> None:
    """Gradients of input and weights."""
    with patch.dict(os.environ, environment):
        output, losses, _ = layer(x.detach().requires_grad_(), {}, {})
        sum(losses, start=output.square().sum()).backward()
    layer.zero_grad(set_to_none=True)


def model_steps(options: argparse.Namespace) -> dict[str, Step]:
    """A training step of each model, on the same random sentences."""
    vocabulary = 32_000
    source, target = torch.randint(
        3, vocabulary, (2, options.batch, options.time), device=options.device
    )
    steps = {}
    for name, plan in MODELS.items():
        config = hw.Seq2SeqLMConfig(
            vocab_size=vocabulary,
            embed_dim=options.dim,
            num_heads=options.heads,
            ffn_dim=4 * options.dim,
            attention=plan,
        )
        model = hw.Seq2SeqLM(config).to(options.device, getattr(torch, options.dtype)).train()
        steps[name] = training_step(model, source, target)
    return steps


def training_step(model: Any, source: Tensor, target: Tensor) -> Step:
    """Forward, backward and Adam, fused as `headwise train` has it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model(input_ids=source, labels=target).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def time_of(step: Step, options: argparse.Namespace) -> float:
    """Seconds of one step."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    synchronize(options)
    start = clock()
    step()
    synchronize(options)
    return clock() - start


def synchronize(options: argparse.Namespace) -> None:
    """Wait for the device."""
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_memory(step: Step, options: argparse.Namespace) -> int:
    """The most bytes that a step holds at one time."""
    step()  # what is made once is no part of it
    if options.device.startswith("cuda"):
        synchronize(options)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        synchronize(options)
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    # Bytes taken, or with a minus sign given back, by time.
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = largest = 0
    for _, change in sorted(changes, key=lambda event: event[0]):
        held += change
        largest = max(largest, held)
    return largest


def memory_table(bytes_held: dict[str, int], options: argparse.Namespace) -> Table:
    """Peak memory of each layer."""
    itemsize = getattr(torch, options.dtype).itemsize
    unit = options.batch * options.time * options.heads * options.dim * itemsize
    table = Table(title=f"peak memory, forward and backward; {sizes(options)}")
    table.add_column("layer")
    table.add_column("MiB", justify="right")
    table.add_column("votes tensors", justify="right")
    for name, held in bytes_held.items():
        table.add_row(name, f"{held / 2**20:.0f}", f"{held / unit:.2f}")
    return table


def ratios_table(
    seconds: dict[str, list[float]], what: str, sizes: str, *, over: str = "", speed: bool = True
) -> Table:
    """Median ratio of each contender to the first, with the middle half of its rounds.

    `over` is what the title calls the first.
    """
    first, baseline = next(iter(seconds.items()))
    table = Table(
        title=f"time over {over or f'the {first} {what}'}; {sizes}",
        caption=f"torch {torch.__version__}, {torch.get_num_threads()} threads; the baseline took "
        f"{statistics.median(baseline) * 1e3:.1f} ms",
    )
    table.add_column(what)
    table.add_column("ratio", justify="right")
    table.add_column("middle half", justify="right")
    if speed:
        table.add_column("speed", justify="right")
    for name, times in seconds.items():
        ratios = [mine / its for mine, its in zip(times, baseline, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells = [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
        table.add_row(name, *cells, *([f"{1 / middle:.2f}"] if speed else []))
    return table


def sizes(options: argparse.Namespace) -> str:
    """What was measured."""
    return (
        f"d={options.dim}, {options.heads} heads, batch {options.batch}, time {options.time}, "
        f"{options.dtype}, {options.device}"
    )


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", action="store_true", help="training steps of a 6 + 6 base model")
    what.add_argument("--memory", action="store_true", help="peak memory of the layers")
    parser.add_argument(
        "--layers", nargs="+", choices=LAYERS, help="which layers, the baseline first"
    )
    parser.add_argument("--dim", type=int, default=512, help="embed_dim; the feed-forward has 4 ×")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--time", type=int, default=128, help="length of the sequences")
    parser.add_argument("--norm", default="post", choices=("post", "pre"), help="of the layers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    add_measuring(parser, rounds=20)
    return parser.parse_args()


def add_measuring(parser: argparse.ArgumentParser, rounds: int) -> None:
    """The options that say how something is measured."""
    parser.add_argument("--rounds", type=int, default=rounds, help="measured rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before those")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; 0 for its default")
    parser.add_argument(
        "--cpu-time", action="store_true", help="of this process, for a machine that is not idle"
    )


if __name__ == "__main__":
    main()
