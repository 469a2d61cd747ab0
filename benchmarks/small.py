"""Training steps of small models: where operators are small, what counts is how many there are.

    python benchmarks/small.py                         # 2 + 2 layers, d=128, 64 × 16 tokens
    python benchmarks/small.py --threads 1 --cpu-time  # on a machine that is not idle
    python benchmarks/small.py --compile               # compiled models too
    python benchmarks/small.py --products              # how many, instead of how long

A step is forward, backward and Adam of a `Seq2SeqLM` of each system at all of its sites, as the
demo's models are, on the same random sentences, without the rules of training: MAE mixes all of
its experts, and its gates and the Weighted Transformer's weights learn by Adam. No model has
dropout, but for MAE's gates by default. Every round runs all models, one after the other, and
takes each time over that of our own standard model in the same round; the table shows the median
over rounds and the range of the middle half. Nothing in a step depends on the time of day, so
`--cpu-time`, which leaves out what other programs take, is that of the step alone.

`--products` counts the multiplications in the matrix products of a step, which take most of the
time of a large model.
"""

import argparse
import itertools
import warnings
from typing import Any

import torch
from layers import Step, add_measuring, in_turns, ratios_table, spread_tokens, training_step
from rich.console import Console
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise.heads.rules import UntrainedRuleWarning

PLANS: dict[str, Any] = {
    "standard": "standard",
    "mae": "mae",
    "mae, no gate dropout": {"system": "mae", "gate_dropout": 0.0},
    "moa, 8K16E32D": {"system": "moa", "size": "8K16E32D"},
    "moa, 8K32E32D": {"system": "moa", "size": "8K32E32D"},
    "tim": {"system": "tim", "layers": "all"},
    "weighted": "weighted",
    "agreement, EM": "agreement",
    "agreement, simple": {"system": "agreement", "routing": "simple"},
}
VOCABULARY = 2_000


def main() -> None:
    """Measure and print."""
    options = parse_options()
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", UntrainedRuleWarning)
    steps = model_steps(options)
    if options.products:
        found = {name: products(step) for name, step in steps.items()}
        for name, number in found.items():
            print(f"{name:20} {number / next(iter(found.values())):.2f}")
        return
    shape = f"d={options.dim}, batch {options.batch}, time {options.time}, {options.device}"
    seconds = in_turns(steps, options)
    Console().print(ratios_table(seconds, "training step", f"{shape}, {options.rounds} rounds"))


def model_steps(options: argparse.Namespace) -> dict[str, Step]:
    """A training step of each model, on the same random sentences."""
    source, target = torch.randint(
        3, VOCABULARY, (2, options.batch, options.time), device=options.device
    )
    steps = {}
    ways = [False, True] if options.compile else [False]
    # Each model compiles the same code anew; those beyond the limit would run without a word.
    torch._dynamo.config.recompile_limit = 64
    for name, is_compiled in itertools.product(options.systems or PLANS, ways):
        config = hw.Seq2SeqLMConfig(
            vocab_size=VOCABULARY,
            embed_dim=options.dim,
            num_heads=8,
            ffn_dim=2 * options.dim,
            encoder_layers=2,
            decoder_layers=2,
            dropout=0.0,
            attention=PLANS[name],
        )
        model = hw.Seq2SeqLM(config).to(options.device).train()
        spread_tokens(model)
        run = torch.compile(model) if is_compiled else model
        steps[f"{name}, compiled" if is_compiled else name] = training_step(run, source, target)
    return steps


def products(step: Step) -> int:
    """The multiplications in the matrix products of a step, and the additions."""
    # Of the CPU's own kernel for attention the counter knows nothing.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--systems", nargs="+", choices=PLANS, help="the baseline first")
    parser.add_argument("--dim", type=int, default=128, help="embed_dim; the feed-forward has 2 ×")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--time", type=int, default=16, help="length of the sequences")
    parser.add_argument("--compile", action="store_true", help="compiled models too")
    parser.add_argument("--products", action="store_true", help="count them instead")
    parser.add_argument("--device", default="cpu")
    add_measuring(parser, rounds=21)
    return parser.parse_args()


if __name__ == "__main__":
    main()
