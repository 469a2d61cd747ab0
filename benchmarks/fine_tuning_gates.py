"""Fine-tunes a small pretrained GPT-2 for another domain: gates alone, all weights, LoRA.

    python benchmarks/fine_tuning_gates.py --out fine_tuning_gates.json

The model is that of examples/gate_a_pretrained_model.py, trained on the docstrings of one package
and fine-tuned on few docstrings of another. Each seed has a pretrained model of its own, and draws
what fine-tuning adds and the order of its batches. A way's learning rate is the best of some on
seed 0, which is not among those reported: of three, and of further ones until neither the largest
nor the smallest is the best. What has been measured stands in the file, so that a run that has been
stopped goes on from there.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import peft
import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import AutoTokenizer, GPT2LMHeadModel

import headwise as hw
from headwise.data.labelled.reading import docstrings
from headwise.files import write_text

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from gate_a_pretrained_model import BLOCK, Block, in_blocks, pretrain


@dataclass(frozen=True)
class Way:
    """A way of fine-tuning.

    Attributes:
        prepare: changes a pretrained model, and freezes what is not to be learned.
        rates: the learning rates of AdamW to try first, of RATES.
        rule: settings of MAE's rule of training.
        of_gates: whether the rates are those of the SGD of MAE's gates instead.
    """

    prepare: Callable[[GPT2LMHeadModel], nn.Module]
    rates: tuple[float, ...]
    rule: Mapping[str, Any] | None = None
    of_gates: bool = False


RATES = tuple(float(f"{digit}e{power}") for power in range(-7, 4) for digit in (1, 3))


def gates(system: str, **options: Any) -> Callable[[GPT2LMHeadModel], nn.Module]:
    return lambda model: hw.gate_heads(model.requires_grad_(False), system, **options)


def gates_and_outputs(model: GPT2LMHeadModel) -> nn.Module:
    """FTG+ of the MAE paper."""
    gates("mae")(model)
    for parameter in hw.output_parameters(model):
        parameter.requires_grad_(True)
    return model


def lora(model: GPT2LMHeadModel) -> nn.Module:
    """LoRA of the rank that has as many parameters as MAE's gates, as nearly as can be."""
    wanted = learning(gates("mae")(model))
    hw.remove_gates(model)
    maps = ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]
    of_rank_1 = peft.LoraConfig(r=1, target_modules=maps, fan_in_fan_out=True)
    adapted = peft.get_peft_model(model, of_rank_1)
    rank = max(1, round(wanted / learning(adapted)))
    options = {"r": rank, "lora_alpha": rank, "target_modules": maps, "fan_in_fan_out": True}
    return peft.get_peft_model(adapted.unload(), peft.LoraConfig(**options))


BY_ADAMW = {"method": "optimizer"}
WAYS = {
    "MAE, gates (FTG)": Way(gates("mae"), (10.0, 30.0, 100.0), of_gates=True),
    "MAE, gates, by AdamW": Way(gates("mae"), (3e-3, 1e-2, 3e-2), BY_ADAMW),
    "MAE of 4 heads, gates see one position": Way(
        gates("mae", dropped_heads=4, gate_window=1), (3e-3, 1e-2, 3e-2), BY_ADAMW
    ),
    "MAE of scaled heads, by AdamW": Way(
        gates("mae", scaled_heads=True), (3e-3, 1e-2, 3e-2), BY_ADAMW
    ),
    "MAE, gates and outputs (FTG+)": Way(gates_and_outputs, (1e-2, 3e-2, 1e-1)),
    "gated, a gate for a head": Way(gates("gated"), (1e-2, 3e-2, 1e-1)),
    "gated, a gate for an element": Way(gates("gated", gate="elementwise"), (1e-2, 3e-2, 1e-1)),
    "LoRA, as many as MAE's gates": Way(lora, (1e-3, 3e-3, 1e-2)),
    "all weights": Way(lambda model: model, (3e-4, 1e-3, 3e-3)),
}


def learning(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("fine_tuning_gates.json"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pretraining-steps", type=int, default=800)
    parser.add_argument("--steps", type=int, default=300, help="of fine-tuning")
    parser.add_argument("--texts", type=int, default=3000, help="docstrings to fine-tune on")
    parser.add_argument("--packages", nargs=2, default=["torch", "scipy"], help="first and second")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "seeds")}
    results = Results(args.out, settings)
    first, second = (docstrings(package) for package in args.packages)
    with TemporaryDirectory() as scratch:
        for seed in range(args.seeds + 1):
            study = Study(seed, Path(scratch) / str(seed), first, second, args, results)
            study.measure()
            print_table(results, args.seeds)


class Results:
    """What has been measured, in a file that is written after each run.

    Args:
        path: of the file.
        settings: of the measurement; what has been measured with others is not mixed with it.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.found: dict[str, Any] = {"settings": settings, "losses": {}, "parameters": {}}
        if path.exists():
            self.found = json.loads(path.read_text(encoding="utf-8"))
            if self.found["settings"] != settings:
                raise SystemExit(
                    f"{path} has been measured with {self.found['settings']}, expected {settings}: "
                    f"give the same, or another --out"
                )

    def add(self, way: str, rate: float, seed: int, loss: float, parameters: int) -> None:
        self.found["losses"][f"{way} | {rate:g} | {seed}"] = loss
        self.found["parameters"][way] = parameters
        write_text(self.path, json.dumps(self.found, indent=1) + "\n")

    def loss(self, way: str, rate: float, seed: int) -> float | None:
        return self.found["losses"].get(f"{way} | {rate:g} | {seed}")

    def losses_by_rate(self, way: str) -> dict[float, float]:
        """The losses of seed 0, by learning rates in their order; infinite where it diverged."""
        losses = {rate: self.loss(way, rate, 0) for rate in RATES}
        return {
            rate: math.inf if math.isnan(loss) else loss
            for rate, loss in losses.items()
            if loss is not None
        }

    def best_rate(self, way: str) -> float:
        """The learning rate of lowest loss on seed 0."""
        losses = self.losses_by_rate(way)
        return min(losses, key=losses.__getitem__)

    def next_rate(self, way: str) -> float | None:
        """The learning rate to try next on seed 0; None if the best lies between others."""
        losses = self.losses_by_rate(way)
        left = [rate for rate in WAYS[way].rates if rate not in losses]
        if left:
            return left[0]
        tried, best = sorted(losses), self.best_rate(way)
        place = RATES.index(best)
        return {tried[0]: RATES[place - 1], tried[-1]: RATES[place + 1]}.get(best)


NOTHING = "none"


class Study:
    """The measurements of one seed."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        first: list[str],
        second: list[str],
        args: argparse.Namespace,
        results: Results,
    ) -> None:
        self.seed, self.folder, self.args, self.results = seed, folder, args, results
        self.first, self.second = first, second

    def measure(self) -> None:
        path: Path | None = None
        for way in WAYS:
            while (rate := self.due(way)) is not None:
                path = path or self.pretrained()
                start = time.perf_counter()
                transformers.set_seed(self.seed)
                model = WAYS[way].prepare(GPT2LMHeadModel.from_pretrained(path))
                self.fine_tune(model, WAYS[way], rate)
                loss = self.validation_loss(model)
                self.results.add(way, rate, self.seed, loss, learning(model))
                seconds = time.perf_counter() - start
                print(f"seed {self.seed}: {way}, {rate:g}: {loss:.4f}, {seconds:.0f} s", flush=True)

    def due(self, way: str) -> float | None:
        """The learning rate with which a way is to be measured next, if any."""
        if self.seed == 0:
            return self.results.next_rate(way)
        best = self.results.best_rate(way)
        return best if self.results.loss(way, best, self.seed) is None else None

    def pretrained(self) -> Path:
        """The folder of this seed's model, whose loss before fine-tuning is measured too."""
        path = pretrain("gpt2", self.first, self.folder, self.args.pretraining_steps, self.seed)
        tokenizer = AutoTokenizer.from_pretrained(path)
        held_out = self.second[::5]
        learned = [text for i, text in enumerate(self.second) if i % 5][: self.args.texts]
        self.learned, self.held_out = (tensor(in_blocks(tokenizer, t)) for t in (learned, held_out))
        before = self.validation_loss(GPT2LMHeadModel.from_pretrained(path))
        self.results.add(NOTHING, 0, self.seed, before, 0)
        return path

    def fine_tune(self, model: nn.Module, way: Way, rate: float) -> None:
        """Trains by the systems' rules, with a linear decay of the learning rate."""
        steps = self.args.steps
        rule = {"learning_rate": rate} if way.of_gates else way.rule
        rules = hw.training_rules(model, steps, settings={"mae": rule} if rule else None)
        groups = rules.parameter_groups(lr=rate, weight_decay=0.0)
        optimizer = torch.optim.AdamW(groups) if groups else None
        scheduler = None
        if optimizer is not None:
            scheduler = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        model.train()
        for _, batch in zip(range(steps), self.batches(), strict=False):

            def loss(batch: torch.Tensor = batch) -> torch.Tensor:
                return model(input_ids=batch, labels=batch).loss

            rules.before_step(loss)
            with rules.step(optimizer):
                loss().backward()
            if optimizer is not None:
                optimizer.step()
                scheduler.step()
            rules.after_step()
            model.zero_grad()

    def batches(self, size: int = 16) -> Iterator[torch.Tensor]:
        while True:
            order = torch.randperm(len(self.learned))
            yield from (self.learned[rows] for rows in order.split(size))

    @torch.no_grad()
    def validation_loss(self, model: nn.Module) -> float:
        model.eval()
        losses = [model(input_ids=rows, labels=rows).loss for rows in self.held_out.split(64)]
        sizes = torch.tensor([len(rows) for rows in self.held_out.split(64)])
        return float((torch.stack(losses) * sizes).sum() / sizes.sum())


def tensor(blocks: list[Block]) -> torch.Tensor:
    return torch.tensor([block["input_ids"] for block in blocks])


def print_table(results: Results, seeds: int) -> None:
    """Prints the losses of the seeds from 1 on, and how far they are below no fine-tuning."""
    table = Table("trained", "parameters", "learning rate", "validation loss", "change", "seeds")
    for way in (NOTHING, *WAYS):
        rate = 0 if way == NOTHING else results.best_rate(way)
        pairs = [
            (results.loss(way, rate, seed), results.loss(NOTHING, 0, seed))
            for seed in range(1, seeds + 1)
        ]
        pairs = [pair for pair in pairs if None not in pair]
        if not pairs:
            continue
        losses, before = torch.tensor(pairs, dtype=torch.float64).T
        parameters = results.found["parameters"][way]
        cells = [mean_and_deviation(losses), mean_and_deviation(losses - before, "+")]
        table.add_row(way, f"{parameters:,}", f"{rate:g}", *cells, str(len(pairs)))
    if table.rows:
        Console(width=120).print(table)
        print(f"mean ± standard deviation over seeds, nats per token of {BLOCK} in a block")


def mean_and_deviation(values: torch.Tensor, sign: str = "") -> str:
    deviation = f" ± {values.std():.4f}" if len(values) > 1 else ""
    return f"{values.mean():{sign}.4f}{deviation}"


if __name__ == "__main__":
    main()
