"""Where to go on from a comparison."""

from pathlib import Path

from headwise.analysis.results import Benchmark, Comparison, diverged, first_score


def run_to_look_into(found: Comparison | Benchmark, folder: Path) -> Path:
    """Returns the folder of the run to go on with: of what decides something, that of best score.

    Args:
        found: the comparison; of several data sets the first counts.
        folder: of the comparison.
    """
    if isinstance(found, Benchmark):
        name, found = next(iter(found.comparisons.items()))
        folder = folder / name
    runs = [(system.name, run) for system in found.systems for run in system.runs[:1]]
    deciding = [(name, run) for name, run in runs if run.attention and not diverged(run)]
    sign = 1 if first_score(found).higher_is_better else -1
    name, run = max(deciding or runs, key=lambda each: sign * each[1].scores[0].value)
    return folder / f"{name}-seed{run.seed}"
