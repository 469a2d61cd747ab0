"""From the standard layer to a system, one change at a time: at which rung does quality fall?

    python benchmarks/ladders.py                              # every ladder, on the demo's data
    python benchmarks/ladders.py "weighted: *@3e-3@101,102"   # ladder: rungs @ rates @ seeds
    python benchmarks/ladders.py --pre-norm                   # the demo's model with pre-norm
    python benchmarks/ladders.py --captions FOLDER            # on 15% of Multi30K's captions
    python benchmarks/ladders.py --table                      # the tables of the runs there are

Each run trains one rung with one learning rate and one seed, and validates as it goes: the recipe
`interface-strings` for 600 steps, as the demo does, or a model of the same width on captions for
2,400. The validation loss is the measure, so nothing is translated and no test part is read. Every
finished run appends a line of JSON to the file `--output`, and runs that it has already are not run
again: the experiment may be stopped at any time. docs/readings.md has what came of it.
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
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from headwise.heads.moa import MixtureOfAttentionHeads
from headwise.heads.moa.layer import _Choice
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import task_class
from headwise.recipes.settings import Recipe
from headwise.runs.preparing import build_model
from headwise.training.run import Interrupted, run_training


class MultiQuery(MixtureOfAttentionHeads):
    """All experts, each by its own queries and maps, without a router: MoA's shared keys alone.

    All maps start at the scale of the standard layer's.
    """

    def reset_parameters(self) -> None:
        super().reset_parameters()
        as_one = (6 / (4 * self.embed_dim)) ** 0.5  # queries, keys and values are drawn as one map
        for projection in (self.expert_query, self.k_proj.weight, self.v_proj.weight):
            nn.init.uniform_(projection, -as_one, as_one)
        bound = (6 / (self.embed_dim + self.num_experts * self.head_dim)) ** 0.5
        nn.init.uniform_(self.expert_output, -bound, bound)

    def _route(self, query: Tensor) -> _Choice:
        choice = super()._route(query)
        return choice._replace(scales=torch.ones_like(choice.scales))


class MultiQueryAsDrawn(MultiQuery):
    """The same with MoA's initial weights."""

    reset_parameters = MixtureOfAttentionHeads.reset_parameters


class LongerSteps(MixtureOfAttentionHeads):
    """The sum times √k, of output maps drawn √k times smaller.

    It starts as MoA does, but steps of a given size, as those of Adam are, move what it adds √k
    times as far. MoA's weights of about 1/k make that k times less than in standard attention.
    """

    exponent = 0.5

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.expert_output /= self.top_k**self.exponent

    def _route(self, query: Tensor) -> _Choice:
        choice = super()._route(query)
        return choice._replace(scales=self.top_k**self.exponent * choice.scales)


class LongestSteps(LongerSteps):
    """The same with k, by which MoA divides."""

    exponent = 1.0


# In quotes, since a colon ends a key of YAML.
MULTI_QUERY, AS_DRAWN, LONGER, LONGEST = (
    f"'{__name__}:{system.__name__}'"
    for system in (MultiQuery, MultiQueryAsDrawn, LongerSteps, LongestSteps)
)

STREAMS = "inner: residual, ffn: split"

# What each rung changes in the recipe, as arguments of `headwise train --set`.
LADDERS: dict[str, dict[str, list[str]]] = {
    "weighted": {
        "standard": [],
        **{
            name: [f"model.attention={{system: weighted, {how}}}"]
            for name, how in (
                ("a stream for each branch, 1/M", f"{STREAMS}, weights: uniform"),
                ("learned from 1/M", f"{STREAMS}, start: even"),
                ("learned from a random start", f"{STREAMS}, start: random"),
                ("shared feed-forward, from 1/M", "inner: residual, ffn: shared, start: even"),
                ("full feed-forwards, from 1/M", "inner: residual, ffn: full, start: even"),
                ("the letter from 1/M", "inner: none, ffn: shared, start: even"),
                ("the letter", "preset: paper"),
                ("top 4, from 1/M", f"{STREAMS}, start: even, top_k: 4"),
                ("fixed at a random start", f"{STREAMS}, start: random, weights: fixed"),
            )
        },
        # A tenth of the warm-up of the rest, √(10N) times its peak.
        "learned from 1/M, κ and α in proportion": [
            f"model.attention={{system: weighted, {STREAMS}, start: even}}",
            "training.weighted.warmup_share=0.1",
        ],
    },
    "agreement": {
        "standard": [],
        **{
            name: [f"model.attention={{encoder_self: {{system: agreement, layers: low, {how}}}}}"]
            for name, how in (
                ("simple, one iteration", "routing: simple, iterations: 1"),
                ("simple, not squashed", "routing: simple, squash: false"),
                ("simple", "routing: simple"),
                ("simple, votes at Glorot's bound", "routing: simple, vote_gain: 1.0"),
                ("simple, votes at 2√H", "routing: simple, vote_gain: 5.66"),
                ("EM, one iteration", "iterations: 1"),
                ("EM", "routing: em"),
                ("EM, votes at Glorot's bound", "vote_gain: 1.0"),
                ("EM, one iteration, λ to 0.01", "iterations: 1, preset: paper"),
                ("EM, λ to 0.01", "preset: paper"),
                ("EM of standardised costs", "activation: standardised"),
                ("EM without activations", "activation: none"),
                ("EM of the authors' code", "preset: authors"),
                ("simple of the authors' code", "preset: authors, routing: simple"),
                ("simple over heads", "routing: simple, normalize: heads"),
            )
        },
    },
    "moa": {
        "standard": [],
        **{
            name: [f"model.attention={{system: {system}, {how}}}"]
            for name, system, how in (
                ("one key head, 8 heads of 16", MULTI_QUERY, "size: 8K8E16D"),
                ("8 heads of 32", MULTI_QUERY, "size: 8K8E32D"),
                ("16 heads of 32", MULTI_QUERY, "size: 16K16E32D"),
                ("initial weights of MoA", AS_DRAWN, "size: 16K16E32D"),
                ("a router that selects all 16", "moa", "size: 16K16E32D"),
                ("a router that selects 8 of 16: 8K16E32D", "moa", "size: 8K16E32D"),
                ("keys at 1/√2", "moa", "size: 8K16E32D, key_gain: 0.7071"),
                ("without auxiliary losses", "moa", "size: 8K16E32D, balance_coef: 0, z_coef: 0"),
                ("losses per batch", "moa", "size: 8K16E32D, auxiliary: per batch"),
                ("output_gain 4", "moa", "size: 8K16E32D, output_gain: 4.0"),
                ("steps √k times as long", LONGER, "size: 8K16E32D"),
                ("steps k times as long", LONGEST, "size: 8K16E32D"),
                ("preset authors", "moa", "size: 8K16E32D, preset: authors"),
                ("8K32E16D", "moa", "size: 8K32E16D"),
                ("8K32E16D, losses per batch", "moa", "size: 8K32E16D, auxiliary: per batch"),
                ("8K8E64D", "moa", "size: 8K8E64D"),
            )
        },
    },
    "mae": {
        "standard": [],
        "uniform gate, F steps": ["model.attention={system: mae, gate: uniform}"],
        "joint": ["model.attention=mae", "training.mae.method=joint"],
        "joint, gates by the optimizer": ["model.attention=mae", "training.mae.method=optimizer"],
        "MAE-7": ["model.attention=mae"],
        **{
            f"MAE-7, {name}": [f"model.attention={{system: mae, {how}}}"]
            for name, how in (
                ("gates drawn as linear maps", "gate_init: default"),
                ("gates drawn by Glorot's bound", "gate_init: xavier"),
                ("fresh statistics", "gate_statistics: fresh"),
                ("scaled causal gates", "gate_scaling: root"),
            )
        },
    },
    # The paper's rate of gates is 1 for batches of 32,000 tokens.
    "gates' rate": {
        f"{name}, {tokens} tokens, gates' rate {rate:g}": [
            "model.attention=mae",
            f"training.mae.method={method}",
            f"training.mae.learning_rate={rate}",
            f"training.batch_tokens={tokens}",
        ]
        for name, method in (("joint", "joint"), ("MAE-7", "block-coordinate-descent"))
        for tokens in (256, 1024, 4096)
        for rate in (0.1, 0.3, 1, 3, 10, 30)
    },
}

RUNS = [f"{ladder}: *@3e-3@101,102,103" for ladder in LADDERS]

DEMO = ["training.max_steps=600", "training.evaluate_every=150"]
# The size of the data and of the model of docs/claims.md.
CAPTIONS = [
    "model.encoder_layers=3",
    "model.norm=pre",
    "model.dropout=0.3",
    "training.max_steps=2400",
    "training.warmup_steps=200",
    "training.evaluate_every=600",
]


class Cell(NamedTuple):
    """One run."""

    data: str
    rung: str
    rate: float
    seed: int


class Corpus(NamedTuple):
    """What all runs train on, and what all their models have in common."""

    name: str
    settings: list[str]


def main() -> None:
    """Run what is missing, and print the tables."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    console = Console()
    corpus = corpus_of(options.captions, options.pre_norm)
    if not options.table:
        for ladder, cell in cells(options.cells or RUNS, corpus.name):
            if cell in results(options.output):
                continue
            console.print(f"{cell.rung} at {cell.rate:g}, seed {cell.seed}", style="dim")
            try:
                record = train(corpus, ladder, cell, console)
            except Interrupted:
                raise SystemExit("stopped; finished runs are kept") from None
            options.output.parent.mkdir(parents=True, exist_ok=True)
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    for ladder, rungs in LADDERS.items():
        console.print(ladder_table(ladder, list(rungs), results(options.output), corpus.name))


def corpus_of(folder: Path | None, pre_norm: bool) -> Corpus:
    """The demo's interface strings and model, this with pre-norm, or captions in a folder."""
    if pre_norm:
        return Corpus("demo, pre-norm", [*DEMO, "model.norm=pre"])
    if folder is None:
        return Corpus("demo", DEMO)
    files = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    parts = ", ".join(
        f"{part}: {{source: '{folder / name}.en.gz', target: '{folder / name}.de.gz'}}"
        for part, name in files.items()
    )
    data = f"data={{corpus: files, train_fraction: 0.15, {parts}}}"
    return Corpus("captions", [data, *CAPTIONS])


def cells(specs: list[str], data: str) -> list[tuple[str, Cell]]:
    """The runs that `ladder: rungs @ rates @ seeds` stands for; rungs with semicolons, or `*`."""
    found = []
    for spec in specs:
        ladder, _, rest = spec.partition(": ")
        rungs, rates, seeds = rest.split("@")
        if ladder not in LADDERS:
            raise SystemExit(f"there is no ladder {ladder!r}: {', '.join(LADDERS)}")
        names = list(LADDERS[ladder]) if rungs == "*" else rungs.split(";")
        # Seeds first, so that each is whole before the next begins.
        for seed, rate, name in product(seeds.split(","), rates.split(","), names):
            if name not in LADDERS[ladder]:
                raise SystemExit(f"no rung {name!r} in {ladder}: {'; '.join(LADDERS[ladder])}")
            found.append((ladder, Cell(data, name, float(rate), int(seed))))
    return found


def results(path: Path) -> dict[Cell, dict[str, Any]]:
    """The runs that there are."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = [json.loads(line) for line in lines]
    return {Cell(r["data"], r["rung"], r["rate"], r["seed"]): r for r in records}


def recipe_of(corpus: Corpus, ladder: str, cell: Cell) -> Recipe:
    """The recipe of a run."""
    own = [f"training.learning_rate={cell.rate}", f"training.seed={cell.seed}"]
    settings = [*corpus.settings, "training.final_model=last", *own]
    return load_recipe("interface-strings", [*settings, *LADDERS[ladder][cell.rung]]).system(None)


def train(corpus: Corpus, ladder: str, cell: Cell, console: Console) -> dict[str, Any]:
    """Train one rung; returns its losses by step."""
    recipe = recipe_of(corpus, ladder, cell)
    with tempfile.TemporaryDirectory() as folder:
        task = task_class(recipe.task).prepare(recipe, Path(folder))
        model = build_model(recipe, task)
        start = time.perf_counter()
        run = run_training(
            model,
            task.train,
            task.validation,
            task.collate,
            recipe.training,
            Path(folder),
            label=cell.rung,
            console=console,
        )
    validated = {r["step"]: round(r["eval_loss"], 4) for r in run.history if "eval_loss" in r}
    seconds = round(time.perf_counter() - start)
    return {**cell._asdict(), "validation": validated, "seconds": seconds}


def ladder_table(
    ladder: str, rungs: list[str], found: dict[Cell, dict[str, Any]], data: str
) -> Table:
    """Validation loss at a quarter, a half and the end of the training; the mean over seeds.

    With each rung the rates that were tried, and the difference from the standard layer at its best
    rate, seed by seed.
    """
    table = Table(title=f"{ladder}, {data}: validation loss")
    for column in ("Rung", "Rate", "Seeds", "Quarter", "Half", "End", "From standard"):
        table.add_column(column, justify="left" if column == "Rung" else "right")
    by_rung: dict[tuple[str, float], dict[int, list[float]]] = defaultdict(dict)
    for cell, record in found.items():
        if cell.data == data:
            first, half, _, last = record["validation"].values()
            by_rung[cell.rung, cell.rate][cell.seed] = [first, half, last]
    standard = best_of(by_rung, "standard")
    for rung in rungs:
        for rate in sorted(rate for name, rate in by_rung if name == rung):
            seeds = by_rung[rung, rate]
            shared = seeds.keys() & standard.keys()
            differences = [seeds[seed][-1] - standard[seed][-1] for seed in sorted(shared)]
            means = [statistics.mean(each) for each in zip(*seeds.values(), strict=True)]
            shown = ", ".join(f"{difference:+.3f}" for difference in differences)
            if len(differences) > 1:
                shown = f"{statistics.mean(differences):+.3f} ({shown})"
            numbers = (f"{mean:.3f}" for mean in means)
            table.add_row(rung, f"{rate:g}", str(len(seeds)), *numbers, shown)
    return table


def best_of(
    by_rung: dict[tuple[str, float], dict[int, list[float]]], rung: str
) -> dict[int, list[float]]:
    """The losses by seed of a rung's best rate, of those that most seeds have."""
    of_rung = [seeds for (name, _), seeds in by_rung.items() if name == rung]
    most = max((len(seeds) for seeds in of_rung), default=0)
    whole = [seeds for seeds in of_rung if len(seeds) == most]
    return min(whole, key=lambda seeds: statistics.mean(q[-1] for q in seeds.values()), default={})


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", help="ladder: rungs@rates@seeds; all by default")
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--captions", type=Path, help="the folder of Multi30K's gzip files")
    data.add_argument("--pre-norm", action="store_true", help="the demo's model with pre-norm")
    parser.add_argument("--output", type=Path, default=Path("evidence/ladders.jsonl"))
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
