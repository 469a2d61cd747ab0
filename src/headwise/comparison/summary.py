"""What the runs of a comparison on one data set say together."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch

from headwise.analysis.chance import compare_outcomes
from headwise.analysis.results import (
    Comparison,
    SystemSummary,
    compare_pictures,
    compare_samples,
)
from headwise.analysis.speed import relative_step_times
from headwise.analysis.verdict import diverged
from headwise.comparison.planned import Runs
from headwise.experiment import batches, read_outcome
from headwise.recipe import RecipeFile, to_yaml
from headwise.recipe.settings import Recipe
from headwise.tasks.task import Task
from headwise.training.run import MODEL

_SAMPLES = 12


class Experiment(NamedTuple):
    """What is to be compared on one data set, and where."""

    folder: Path
    task: Task
    recipes: dict[str, Recipe]  # by system
    matched: dict[str, str]  # what --match chose for them, in words


def summary(
    file: RecipeFile,
    experiment: Experiment,
    runs: Runs,
    dataset: str | None,
    command: str,
    missing: Sequence[str] = (),
) -> Comparison:
    """Puts the runs that there are side by side.

    The time of a step is measured when none is missing: others at work would disturb it.
    """
    task, baseline = experiment.task, next(iter(experiment.recipes))
    recipes = {name: recipe for name, recipe in experiment.recipes.items() if name in runs}
    folders = {
        name: [experiment.folder / f"{name}-seed{run.seed}" for run in of_system]
        for name, of_system in runs.items()
    }
    outcomes = {name: [read_outcome(run) for run in of] for name, of in folders.items()}
    first = {name: of_system[0] for name, of_system in outcomes.items()}
    times = {}
    if not missing:
        times = _step_times(recipes, {name: of[0] for name, of in folders.items()}, task)
    sound = {
        name: [o for run, o in zip(runs[name], of, strict=True) if not diverged(run)]
        for name, of in outcomes.items()
    }
    estimates, differences = compare_outcomes(
        sound, baseline, lambda name: task.statistic(name, experiment.recipes[baseline].evaluation)
    )
    return Comparison(
        title=f"{file.name}{f', {dataset}' if dataset else ''}: {', '.join(experiment.recipes)}",
        task=file.recipe.task,
        loss_name=task.loss_name,
        loss_has_perplexity=task.loss_has_perplexity,
        item_name=task.item_name,
        centre=task.centre,
        baseline=baseline,
        systems=[
            SystemSummary(
                name=name,
                description=file.recipe.systems[name].description,
                runs=runs[name],
                relative_step_time=times.get(name),
                estimates=estimates[name],
                difference=differences.get(name),
                matched=experiment.matched.get(name, ""),
            )
            for name in recipes
        ],
        missing=list(missing),
        samples=compare_samples({name: of.samples for name, of in first.items()})[:_SAMPLES],
        pictures=compare_pictures({name: of.pictures for name, of in first.items()}),
        facts=task.notes,
        recipe=to_yaml(file.recipe),
        command=command,
        versions=_versions(),
        machine=_machine(),
    )


def _step_times(
    recipes: Mapping[str, Recipe], runs: Mapping[str, Path], task: Task
) -> dict[str, float]:
    loader = batches(task, task.train, next(iter(recipes.values())).training, seed=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    some = [
        {name: tensor.to(device) for name, tensor in batch.items()}
        for batch, _ in zip(loader, range(3), strict=False)
    ]
    models = {
        name: task.model_class.from_pretrained(run / MODEL).to(device) for name, run in runs.items()
    }
    settings = {name: recipe.training.of_rules() for name, recipe in recipes.items()}
    return relative_step_times(models, settings, some)


def _versions() -> dict[str, str]:
    packages = ("headwise", "torch", "transformers", "tokenizers", "sacrebleu")
    return {"python": platform.python_version()} | {p: metadata.version(p) for p in packages}


def _machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
