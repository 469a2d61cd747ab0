"""Evaluates finished runs; run by torchrun, which has several processes divide the test part.

Writes the outcome of each run, by the name of its folder, to the file named on the command line.
"""

import json
import os
import sys
from pathlib import Path

from rich.console import Console

from headwise.runs.evaluating import evaluate_run, loss_of_part, model_of


def outcomes(runs: list[Path]) -> dict[str, dict]:
    """The outcome of each run on its test part, and its loss on the validation part."""
    found = {}
    for run in runs:
        made = evaluate_run(run, "test", Console(quiet=True))
        task, settings = made.task, made.recipe.training
        loss = loss_of_part(model_of(made), task, task.validation, settings)
        found[run.name] = json.loads(made.outcome.model_dump_json()) | {"loss": loss}
    return found


if __name__ == "__main__":
    made = outcomes([Path(run) for run in sys.argv[2:]])
    Path(f"{sys.argv[1]}-{os.environ['RANK']}").write_text(json.dumps(made), encoding="utf-8")
