"""Results of an experiment whose numbers are plain to see, and scores with noise."""

from pathlib import Path

import numpy as np

from evidence.experiments import Conditions, Places
from evidence.quantities import Found
from evidence.results import Run
from evidence.tables import ExperimentResult, SystemResult
from headwise.analysis.statistics.estimates import corrected
from headwise.analysis.statistics.seeds_and_items import Resampled, difference
from headwise.recipes import load_recipe
from headwise.tasks.outcome import Score
from headwise.tasks.significance import resampled_scores


def system(name: str, losses: list[float]) -> SystemResult:
    """Returns a system with these test losses of its seeds, and scores that are ten times them."""
    runs = [_run(name, seed, loss) for seed, loss in enumerate(losses, 1)]
    score = Found(Resampled(10 * np.array(losses), None, 0), True, 1, "score")
    loss = Found(Resampled(np.array(losses), None, 0), False, 3, "loss")
    recipe = load_recipe("interface-strings").recipe
    return SystemResult(
        name,
        recipe,
        is_tuned=False,
        runs=runs,
        collapsed=[],
        is_stale=False,
        score=score,
        loss=loss,
    )


def result(systems: list[SystemResult]) -> ExperimentResult:
    """Returns an experiment with these systems, whose baseline is called standard."""
    scores = {each.name: each.score.values for each in systems}
    losses = {each.name: each.loss.values for each in systems}
    of_scores, of_losses = (
        corrected(
            {n: difference(of, found["standard"]) for n, of in found.items() if n != "standard"}
            if "standard" in found
            else {}
        )
        for found in (scores, losses)
    )
    return ExperimentResult(
        Conditions("laptop", "translation", Places(Path(), Path(), Path())),
        *(None, "nats per token", "standard", systems),
        scores=of_scores,
        losses=of_losses,
    )


def drawn(
    generator: np.random.Generator, *, seeds: int = 5, items: int = 200, of_seeds: float = 1.0
) -> Resampled:
    """Returns scores of a system to which seeds and items each add noise."""
    rows = generator.normal(0, 5.0, (seeds, items)) + generator.normal(0, of_seeds, (seeds, 1))
    resamples = resampled_scores(
        list(rows[:, :, None]), lambda of, counts: counts @ of[:, 0] / items
    )
    return Resampled(rows.mean(1), resamples, items)


def _run(name: str, seed: int, loss: float) -> Run:
    validated = {50: loss + 1.0, 90: loss + 0.1, 100: loss + 0.2}
    trained = {90: loss + 5.0, 95: loss + 0.3, 100: loss + 0.5}
    return Run(
        at="",
        dataset=None,
        system=name,
        seed=seed,
        recipe="",
        data="",
        fingerprint=[],
        parameters=1_200_000,
        macs=1,
        steps=100,
        minutes=2.0,
        threads=[1],
        validation_loss=loss + 0.2,
        history=[
            *({"step": step, "loss": value} for step, value in trained.items()),
            *({"step": step, "eval_loss": value} for step, value in validated.items()),
        ],
        scores=[Score(name="score", value=10 * loss)],
        loss=loss,
        ablations={},
        ablated_scores={},
        attention=[],
        versions={},
        machine="a machine",
        rows={},
    )
