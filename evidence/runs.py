"""Trains what claims lack by `headwise compare`, and adds a line for each finished run."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

from evidence.verdicts import HERE, Claim, read_catalogue, read_lines
from headwise.analysis.ablations import parse_ablations
from headwise.analysis.decisions import collect
from headwise.analysis.metrics import entropy, unit_load
from headwise.analysis.results import ComparisonRecord, machine, versions
from headwise.files import write_bytes
from headwise.pretrained.ablate import ablated
from headwise.recipes.recipe import load_recipe, task_class
from headwise.runs.evaluate import read_outcome
from headwise.runs.folder import read_model, read_result
from headwise.training.loss import loss_and_labels, undisturbed_evaluation

RUNS = Path("runs/claims")
MEASUREMENTS = 3  # of times: each differs from the others by more than its own rounds do
# An expert that is drawn for each layer (table 5 of the MAE paper). UNI-MAE trains all alike, so
# that the first of each layer is one.
ALIASES = {"mae=random-expert": "mae=only-expert,expert=0"}


def compare(name: str, folder: Path, *options: str, **environment: str) -> int:
    """Runs `headwise compare`, which resumes from where it was stopped; returns how it ended."""
    command = [sys.executable, "-m", "headwise", "compare", recipe_path(name), f"--output={folder}"]
    # Control-C reaches it too, and it ends after a checkpoint; `subprocess.run` would kill it.
    with subprocess.Popen([*command, *options], env={**os.environ, **environment}) as process:
        return process.wait()


def recipe_path(name: str) -> str:
    return str(HERE / "recipes" / f"{name}.yaml")


def append(results: Path, name: str, line: Mapping[str, Any]) -> None:
    """Adds a line; the others stay as they are, byte by byte."""
    file = results / f"{name}.jsonl"
    before = file.read_bytes() if file.is_file() else b""
    write_bytes(file, before + json.dumps(line, ensure_ascii=False).encode() + b"\n")


def train(
    experiment: str,
    claims: Sequence[Claim],
    seeds: Sequence[int],
    jobs: int,
    tune: bool,
    results: Path,
) -> set[str]:
    """Trains what claims of an experiment lack; returns the hashes of the data.

    A run that has a line on the same data is not trained again.
    """
    catalogue = read_catalogue()
    all_claims = [claim for claim in catalogue.claims().values() if claim.experiment == experiment]
    digests = set()
    for name in dict.fromkeys(subject.system for claim in claims for subject in claim.subjects):
        dataset, _, system = name.rpartition("/")
        recipe = load_recipe(recipe_path(experiment)).system(system, dataset or None)
        task = task_class(recipe.task)(recipe)
        keys = {"kind": "run", "system": name, "data": task.content_hash()}
        digests.add(keys["data"])
        lines = read_lines(results).get(experiment, [])
        recorded = [line["seed"] for line in lines if keys.items() <= line.items()]
        missing = [seed for seed in seeds if seed not in recorded]
        if not missing:
            continue
        seed_list = ",".join(map(str, missing))
        options = [f"--systems={system}", f"--seeds={seed_list}", f"--jobs={jobs}"]
        if tune:
            options += [f"--tune={values}" for values in catalogue.tune.get(experiment, ())]
        options += [f"--datasets={dataset}"] if dataset else []
        status = compare(experiment, RUNS / experiment, *options)
        for seed in missing:
            run = RUNS / experiment / f"{name}-seed{seed}"
            if (run / "result.json").is_file():
                line = {**keys, "seed": seed, **describe_run(run, task, all_claims)}
                append(results, experiment, line)
        if status:
            raise typer.Exit(status)
    return digests


def describe_run(run: Path, task: Any, claims: Sequence[Claim]) -> dict[str, Any]:
    """Collects all that the claims of an experiment need of a finished run."""
    result, model, scores = read_result(run), read_model(run), read_outcome(run).scores
    assert result is not None
    subjects = [subject for claim in claims for subject in claim.subjects]
    ablations = [name for s in subjects if s.system == result.system for name in s.ablated]
    items = task.splits["test"]
    size = max(1, min(16, len(items) // 50))  # at least 50 batches if there are so many items
    indices = np.array_split(range(len(items)), range(size, len(items), size))
    batches = [task.collate(items.__getitems__(part.tolist())) for part in indices]
    rows = {scores[0].name: scores[0].rows}
    for name in dict.fromkeys(["", *ablations]):
        ablation = parse_ablations([ALIASES.get(name, name)]) if name else {}
        with ablated(model, ablation), undisturbed_evaluation(model):
            losses = [loss_and_labels(model, batch).tolist() for batch in batches]
        rows[f"loss with {name}" if name else "loss"] = losses
    start = result.history[0] if result.history else {}
    keys = {"eval_loss", *(claim.quantity.key for claim in claims)}
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, cwd=HERE, capture_output=True, text=True, check=False).stdout
    return {
        "validation_loss": result.validation_loss,
        "history": [
            {key: number for key, number in row.items() if key in keys}
            for row in result.history
            if "eval_loss" in row
        ],
        "scores": [score.model_dump(exclude={"rows"}) for score in scores],
        "attention": [
            {
                "site": d.site,
                "layer": d.layer,
                "entropy": float(entropy(d)["mean"]),
                "start_entropy": start.get(f"entropy {d.place}"),
                "load": unit_load(d).tolist(),
            }
            for d in (collect(model, batches) if result.units else [])
        ],
        "commit": commit.strip(),
        "machine": machine(),
        "versions": versions(),
        "rows": {name: np.round(values, 5).tolist() for name, values in rows.items()},
    }


def measure(name: str, results: Path) -> None:
    """Measures times of steps and tokens on one thread, each time with new models."""
    for number in range(len(read_lines(results).get(name, [])) + 1, MEASUREMENTS + 1):
        folder = RUNS / name / str(number)
        if status := compare(name, folder, "--seeds=1", OMP_NUM_THREADS="1"):
            raise typer.Exit(status)
        document = (folder / "comparison.json").read_bytes()
        compared = ComparisonRecord.model_validate_json(document).model_dump()
        times = {"step": compared["step_times"], "token": compared["decoding_times"]}
        about = {"machine": compared["machine"], "versions": compared["versions"]}
        append(results, name, {"kind": "times", "number": number, **times, **about})
