"""Where the time of a translation goes when the encoder routes by agreement.

    python benchmarks/decoding.py              # outputs of 24 and 72 tokens, two vocabularies
    python benchmarks/decoding.py --device cuda --sentences 64

Li et al. 2019 (https://arxiv.org/abs/1904.03100), table 2, print that routing in the encoder alone
leaves the speed of decoding as it is. The encoder runs once for a translation and the decoder once
for every token, so that what the encoder costs weighs less the longer outputs are, and the more
time each token takes, as with a larger vocabulary.

Models of the base size (512 dimensions, 6 + 6 layers) translate the same random sentences by beam
search into outputs of a given length, in turns, with and without the encoder's own time: without,
its output is given. Each figure is the median of the ratios within rounds, with its 95% interval.
Models are not trained.
"""

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import headwise as hw
from headwise.analysis.speed import OverRounds

PLANS: dict[str, Any] = {"standard": "standard", "em-encoder": {"encoder_self": "agreement"}}
BEAMS = 4


def main() -> None:
    """Measure and print."""
    options = parse_options()
    torch.manual_seed(0)
    table = Table(
        title=f"em-encoder over standard; {options.sentences} sentences of {options.time} tokens, "
        f"{BEAMS} beams, {options.rounds} rounds",
        caption=f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads",
    )
    headers = ("vocabulary", "output tokens", "whole", "without the encoder", "encoder's share*")
    for header in headers:
        table.add_column(header, justify="right")
    for vocabulary in options.vocabularies:
        models = {name: build(plan, vocabulary, options) for name, plan in PLANS.items()}
        source = torch.randint(
            3, vocabulary, (options.sentences, options.time), device=options.device
        )
        for tokens in options.tokens:
            cells = measured(models, source, tokens, options)
            table.add_row(f"{vocabulary:,}", f"{tokens}", *cells)
    console = Console()
    console.print(table)
    console.print("* of the standard model's time")


def build(plan: Any, vocabulary: int, options: argparse.Namespace) -> hw.Seq2SeqLM:
    """Returns a model of the base size, in evaluation mode."""
    config = hw.Seq2SeqLMConfig(
        vocab_size=vocabulary, embed_dim=512, num_heads=8, ffn_dim=2048, attention=plan
    )
    return hw.Seq2SeqLM(config).to(options.device).eval()


def measured(
    models: dict[str, hw.Seq2SeqLM], source: Tensor, tokens: int, options: argparse.Namespace
) -> list[str]:
    """Returns the cells of a row: two ratios, and the encoder's share of the standard model."""
    lengths = {"min_new_tokens": tokens, "max_new_tokens": tokens, "num_beams": BEAMS}
    with torch.no_grad():
        encoded = {name: model.encoder(source) for name, model in models.items()}
    whole: dict[str, list[float]] = {name: [] for name in models}
    after: dict[str, list[float]] = {name: [] for name in models}
    for number in track(range(options.rounds + 1), "measuring", transient=True):
        for name, model in models.items():
            translating = seconds(lambda m=model: m.generate(source, **lengths))
            given = copy.copy(encoded[name])  # the search puts its own in there
            decoding = seconds(
                lambda m=model, e=given: m.generate(source, encoder_outputs=e, **lengths)
            )
            if number > 0:  # the first round warms up
                whole[name].append(translating)
                after[name].append(decoding)
    standard, routed = PLANS
    ratios = [over(of[routed], of[standard]) for of in (whole, after)]
    share = 1 - over(after[standard], whole[standard]).value
    return [*(shown(found) for found in ratios), f"{share:.1%}"]


def over(ours: list[float], theirs: list[float]) -> OverRounds:
    """Returns the ratio within each round."""
    return OverRounds.of([one / other for one, other in zip(ours, theirs, strict=True)])


def seconds(run: Callable[[], object]) -> float:
    """Returns how long something takes, without gradients."""
    with torch.no_grad():
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
    return time.perf_counter() - start


def synchronize() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def shown(found: OverRounds) -> str:
    """Returns a ratio with its interval as text."""
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[2_000, 32_000])
    parser.add_argument("--tokens", type=int, nargs="+", default=[24, 72])
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--time", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
