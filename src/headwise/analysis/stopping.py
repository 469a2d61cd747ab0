"""Says which runs of a comparison were stopped early, and when."""

from headwise.analysis.formatting import listed
from headwise.analysis.results import Comparison, RunResult, SystemSummary


def early_stops(comparison: Comparison) -> list[str]:
    """Returns a sentence on the runs that `training.patience` stopped; none if it stopped none."""
    parts = []
    for system in comparison.systems:
        stopped = [run for run in system.runs if run.early_stop is not None]
        if stopped:
            parts.append(f"{system.name} {listed([_when(system, run) for run in stopped])}")
    if not parts:
        return []
    return [f"Stopped early, for want of a better validation loss: {'; '.join(parts)}."]


def _when(system: SystemSummary, run: RunResult) -> str:
    assert run.early_stop is not None
    seed = f" with seed {run.seed}" if len(system.runs) > 1 else ""
    best = run.early_stop.best_step
    since = f" (lowest at {best:,})" if best is not None else ""
    return f"at step {run.steps:,} of {run.early_stop.planned_steps:,}{since}{seed}"
