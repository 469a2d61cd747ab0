"""Says which runs of a comparison were stopped early, when, and why."""

import math

from headwise.analysis.results import Comparison, RunResult, SystemSummary
from headwise.report.formatting import listed


def early_stops(comparison: Comparison) -> list[str]:
    """Returns sentences on the runs that ended before their last step; none if all came to it."""
    reasons = {
        "for want of a better validation loss": False,
        "because the validation loss was no number": True,
    }
    sentences = []
    for why, is_lost in reasons.items():
        parts = []
        for system in comparison.systems:
            stopped = [
                run
                for run in system.runs
                if run.early_stop is not None and _ended_without_a_loss(run) == is_lost
            ]
            if stopped:
                parts.append(f"{system.name} {listed([_when(system, run) for run in stopped])}")
        if parts:
            sentences.append(f"Stopped early, {why}: {'; '.join(parts)}.")
    return sentences


def _ended_without_a_loss(run: RunResult) -> bool:
    losses = [record["eval_loss"] for record in run.history if "eval_loss" in record]
    return bool(losses) and not math.isfinite(losses[-1])


def _when(system: SystemSummary, run: RunResult) -> str:
    assert run.early_stop is not None
    seed = f" with seed {run.seed}" if len(system.runs) > 1 else ""
    best = run.early_stop.best_step
    since = f" (lowest at {best:,})" if best is not None else ""
    return f"at step {run.steps:,} of {run.early_stop.planned_steps:,}{since}{seed}"
