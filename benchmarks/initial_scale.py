"""What makes a system slow at first: its rate, its initial scale, or its equations?

    python benchmarks/initial_scale.py                        # the whole experiment, hours
    python benchmarks/initial_scale.py weighted@3e-3@1,2      # variants @ rates @ seeds
    python benchmarks/initial_scale.py --scales               # the scales before the first step
    python benchmarks/initial_scale.py --table                # the table of what there is

Each run trains a variant of a system on the recipe `interface-strings` for 600 steps, as the demo
does, at one learning rate and with one seed, and validates every 100 steps. The validation loss is
the measure, so nothing is translated. Every finished run appends a line of JSON to `runs.jsonl`
in the output folder, and those that it has already are not run again: the experiment may be
stopped at any time.

`--scales` prints, for each kind of sub-layer, the root mean square (RMS) of what it adds to the
residual stream over the RMS of the stream itself, on one batch before the first step; that of the
part in which positions differ; and how far the first step of Adam, at a learning rate of 1e-3,
moves what it adds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from headwise.experiment.preparing import batches, build_model
from headwise.heads.attention import Inputs
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.system import AttentionOutput, Routing, System
from headwise.heads.weighted import BranchedAttention
from headwise.models.base import HeadwiseModel
from headwise.models.layers import FeedForward
from headwise.recipe import load_recipe
from headwise.recipe.catalogue import task_class
from headwise.recipe.settings import Recipe
from headwise.tasks.task import Task
from headwise.training.rules import TrainingRules
from headwise.training.run import Interrupted, run_training


class UnitKappa(BranchedAttention):
    """Branches whose κ sums to M: each feeds the feed-forward at the scale of a standard head."""

    def branch_weights(self) -> tuple[Tensor, Tensor]:
        kappa, alpha = super().branch_weights()
        return self.num_branches * kappa, alpha


class UnitWeights(UnitKappa):
    """Branches whose κ and α sum to M each."""

    def branch_weights(self) -> tuple[Tensor, Tensor]:
        kappa, alpha = super().branch_weights()
        return kappa, self.num_branches * alpha


class SummedHeads(BranchedAttention):
    """All heads are summed before one feed-forward: what is left is that no residual sum and no
    norm stands between the two.
    """

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        attended = torch.einsum("bhtd,hde->bte", heads, self.branch_output)
        hidden = F.dropout(F.relu(self.ffn_up(attended)), self.ffn_dropout, self.training)
        return self.ffn_down(hidden), Routing(self.branch_weights()[1])


class UnscaledExperts(MixtureOfAttentiveExperts):
    """Experts whose heads F steps leave out without scaling the others by h/(h − t)."""

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        if self.training and self.step != "joint":
            heads = heads * (1 - self.dropped_heads / self.num_heads)
        return super().combine(heads, inputs, choice)


RECIPE = "interface-strings"
EVERY = ["training.max_steps=600", "training.final_model=last"]

# What each variant changes in the recipe, as arguments of `headwise train --set`.
VARIANTS: dict[str, list[str]] = {
    "standard": [],
    **{
        f"weighted gain={gain}": [f"model.attention={{system: weighted, output_gain: {gain}.0}}"]
        for gain in (1, 3, 8, 32)
    },
    "weighted Σκ=8": ["model.attention={system: 'initial_scale:UnitKappa', output_gain: 1.0}"],
    "weighted Σκ=Σα=8": ["model.attention={system: 'initial_scale:UnitWeights', output_gain: 1.0}"],
    "heads summed": ["model.attention={system: 'initial_scale:SummedHeads', output_gain: 1.0}"],
    "mae": ["model.attention=mae"],
    "mae by position": ["model.attention=mae", "training.mae.draw=position"],
    "mae joint": ["model.attention=mae", "training.mae.method=joint"],
    "mae gate rate 0.1": ["model.attention=mae", "training.mae.learning_rate=0.1"],
    "mae uniform gate": ["model.attention={system: mae, gate: uniform}"],
    "mae uniform unscaled": [
        "model.attention={system: 'initial_scale:UnscaledExperts', gate: uniform}"
    ],
    "agreement": ["model.attention={agreement: low}"],
    **{
        f"{name} votes={gain}": [
            f"model.attention={{encoder_self: {{system: agreement, {how}, vote_gain: {gain}}}}}"
        ]
        for name, how in (
            ("em", "layers: low"),
            ("simple", "layers: low, routing: simple"),
            ("simple unsquashed", "layers: low, routing: simple, squash: false"),
        )
        for gain in (1.0, 1.5, 2.0, 3.0, 5.66)
    },
    **{
        f"weighted {name}": [f"model.attention={{system: weighted, {how}}}"]
        for name, how in (
            ("letter", "inner: none"),
            ("letter even", "inner: none, start: even"),
            ("residual", "inner: residual, ffn: split"),
            ("residual even", "inner: residual, ffn: split, start: even"),
            ("residual even fixed", "inner: residual, ffn: split, weights: uniform"),
            ("residual even shared", "inner: residual, start: even"),
        )
    },
    **{
        f"agreement λ={limit}": [
            "model.attention={encoder_self: {system: agreement, layers: low, "
            f"inverse_temperature: {limit}.0}}}}"
        ]
        for limit in (10, 100)
    },
    **{
        f"moa gain={gain}": [
            f"model.attention={{system: moa, size: 8K8E32D, output_gain: {gain}.0}}"
        ]
        for gain in (1, 4, 16)
    },
}

# The runs of docs/initial-scale.md.
RUNS = [
    "standard@1.5e-3,3e-3,4.5e-3,6e-3@1",
    "weighted gain=1@1.5e-3,3e-3,4.5e-3,6e-3,1.2e-2@1",
    "weighted gain=8@2e-3,3e-3,4.5e-3,6e-3@1",
    "weighted gain=3@4.5e-3@1",
    "weighted gain=32,weighted Σκ=8@3e-3@1",
    "weighted Σκ=8@6e-3@1",
    "heads summed@1.5e-3,3e-3@1",
    "mae,mae by position,mae joint,mae gate rate 0.1@3e-3@1",
    "mae uniform gate,mae uniform unscaled@3e-3@1",
    "agreement,agreement λ=10,agreement λ=100@3e-3@1",
    "standard,weighted gain=1,weighted gain=8,mae,mae joint,mae uniform gate@3e-3@2",
    "agreement,agreement λ=100@3e-3@2",
    "weighted gain=1@4.5e-3,6e-3@2",
    "weighted gain=3@4.5e-3@2",
]


class Cell(NamedTuple):
    """One run."""

    variant: str
    rate: float
    seed: int


def main() -> None:
    """Run what is missing, and print the table."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    console = Console()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.scales:
        console.print(scales_table(list(VARIANTS), options.output))
        return
    path = options.output / "runs.jsonl"
    if not options.table:
        for cell in cells(options.cells or RUNS):
            if cell not in results(path):
                console.print(f"{cell.variant} at {cell.rate:g}, seed {cell.seed}", style="dim")
                try:
                    record = train(cell, options.output, console)
                except Interrupted:
                    raise SystemExit("stopped; finished runs are kept") from None
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    console.print(loss_table(results(path), step=600))
    console.print(loss_table(results(path), step=100))


def cells(specs: list[str]) -> list[Cell]:
    """The runs that `variants@rates@seeds` stands for, each a list with commas."""
    found = []
    for spec in specs:
        variants, rates, seeds = (part.split(",") for part in spec.split("@"))
        for variant, rate, seed in product(variants, rates, seeds):
            if variant not in VARIANTS:
                raise SystemExit(f"there is no variant {variant!r}: {', '.join(VARIANTS)}")
            found.append(Cell(variant, float(rate), int(seed)))
    return found


def results(path: Path) -> dict[Cell, dict[str, Any]]:
    """The runs that there are."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = [json.loads(line) for line in lines]
    return {Cell(r["variant"], r["rate"], r["seed"]): r for r in records}


def recipe_of(cell: Cell) -> Recipe:
    """The recipe of a run."""
    own = [f"training.learning_rate={cell.rate}", f"training.seed={cell.seed}"]
    return load_recipe(RECIPE, [*EVERY, *own, *VARIANTS[cell.variant]]).system(None)


def prepare(recipe: Recipe, output: Path) -> Task:
    """The data; what encodes them is learnt once."""
    folder = output / "task"
    folder.mkdir(exist_ok=True)
    return task_class(recipe.task).prepare(recipe, folder)


def train(cell: Cell, output: Path, console: Console) -> dict[str, Any]:
    """Train one variant; returns its losses by step."""
    recipe = recipe_of(cell)
    task = prepare(recipe, output)
    model = build_model(recipe, task)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = run_training(
            model,
            task.train,
            task.validation,
            task.collate,
            recipe.training,
            Path(folder),
            label=cell.variant,
            console=console,
        )
    validated = {r["step"]: round(r["eval_loss"], 4) for r in run.history if "eval_loss" in r}
    trained = {r["step"]: round(r["loss"], 4) for r in run.history if "loss" in r}
    seconds = round(time.perf_counter() - start)
    return {**cell._asdict(), "validation": validated, "training": trained, "seconds": seconds}


def loss_table(found: dict[Cell, dict[str, Any]], step: int) -> Table:
    """Validation loss after `step` steps: mean over the seeds, with their range."""
    rates = sorted({cell.rate for cell in found})
    table = Table(title=f"Validation loss after {step} steps")
    table.add_column("Variant")
    for rate in rates:
        table.add_column(f"{rate:g}", justify="right")
    for variant in VARIANTS:
        losses: dict[float, list[float]] = defaultdict(list)
        for cell, record in found.items():
            if cell.variant == variant:
                losses[cell.rate].append(record["validation"][str(step)])
        if losses:
            best = min(statistics.mean(seeds) for seeds in losses.values())
            table.add_row(variant, *(_shown(losses[rate], best) for rate in rates))
    return table


def _shown(losses: list[float], best: float) -> str:
    if not losses:
        return ""
    mean = statistics.mean(losses)
    shown = f"[bold]{mean:.3f}[/bold]" if mean == best else f"{mean:.3f}"
    spread = f" ±{(max(losses) - min(losses)) / 2:.3f}" if len(losses) > 1 else ""
    return f"{shown}{spread}"


class Scale(NamedTuple):
    """Of one sub-layer, relative to the stream to which it adds."""

    adds: float
    differs: float
    moves: float


def scales_table(variants: list[str], output: Path) -> Table:
    """What each kind of sub-layer adds before the first step, and what that step changes."""
    table = Table(title="What a sub-layer adds / what of it differs / what Adam's first step moves")
    table.add_column("Variant")
    rows: dict[str, dict[str, Scale]] = {name: scales(name, output) for name in variants}
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    for kind in kinds:
        table.add_column(kind, justify="right")
    for name, row in rows.items():
        shown = (" / ".join(f"{x:.3f}" for x in row[kind]) if kind in row else "" for kind in kinds)
        table.add_row(name, *shown)
    return table


def scales(variant: str, output: Path) -> dict[str, Scale]:
    """The scales of a variant: kind of sub-layer to the mean over layers."""
    recipe = recipe_of(Cell(variant, 3e-3, 1))
    task = prepare(recipe, output)
    model = build_model(recipe, task).train()
    _without_dropout(model)
    batch = next(iter(batches(task, task.train, recipe.training, seed=1)))
    before = _added(model, batch)
    with TrainingRules(model, recipe.training.of_rules()).around():
        model(**batch).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad.sign()  # Adam's first step
    inputs = {path: stream for path, (stream, _) in before.items()}
    after = _added(model, batch, inputs)
    found: dict[str, list[Scale]] = defaultdict(list)
    for path, (stream, added) in before.items():
        parts = added, added - added.mean((0, 1)), after[path][1] - added
        found[_kind(path)].append(Scale(*(_rms(part) / _rms(stream) for part in parts)))
    return {
        kind: Scale(*(statistics.mean(values) for values in zip(*of_kind, strict=True)))
        for kind, of_kind in found.items()
    }


def _added(
    model: HeadwiseModel, batch: dict[str, Tensor], inputs: dict[str, Tensor] | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """What stands before each sub-layer, and what the sub-layer makes of it.

    With `inputs`, each sub-layer gets what it got before, whatever the layers below give.
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], out: Any) -> None:
            added = out.output if isinstance(out, AttentionOutput) else out
            seen[path] = (args[0].detach(), added.detach())

        return hook

    def put(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            return None if inputs is None else (inputs[path], *args[1:])

        return hook

    handles = []
    for path, module in model.named_modules():
        if isinstance(module, System | FeedForward):
            handles += [
                module.register_forward_pre_hook(put(path)),
                module.register_forward_hook(note(path)),
            ]
    torch.manual_seed(0)
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return seen


def _kind(path: str) -> str:
    stack, *_, name = path.split(".")
    return f"{stack} {name.replace('_', ' ')}"


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        for name, value in vars(module).items():
            if name.endswith("dropout") and isinstance(value, float):
                setattr(module, name, 0.0)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", help="variants@rates@seeds; the experiment by default")
    parser.add_argument("--output", type=Path, default=Path("runs/initial-scale"))
    parser.add_argument("--scales", action="store_true", help="print the scales instead")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
