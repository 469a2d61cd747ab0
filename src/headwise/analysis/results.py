"""The records that runs and comparisons leave in their folders, of which pages are made."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import pandas as pd
import torch
from pydantic import Field

from headwise.analysis.speed import OverRounds
from headwise.tasks.scores import Record, Score

TEST = "test"  # the name of the test part
EVEN_ENTROPY = "entropy, 1 is even"


class _Trained(Record):
    validation_loss: float  # of the final model, in the task's unit

    @property
    def diverged(self) -> bool:
        """Says whether training failed: the validation loss is not finite."""
        return not math.isfinite(self.validation_loss)


class RunResult(_Trained):
    """One system trained with one seed: `result.json` of the folder of a run."""

    system: str
    seed: int
    parameters: int
    # How many of the parameters learned, see `training.trainable`; None stands for all of them.
    trained_parameters: int | None = None
    macs: int  # multiply-accumulates of one forward pass, see macs_lengths
    # Number of positions in that pass, by `encoder` and `decoder`; a model with one of them has
    # only its own.
    macs_lengths: dict[str, int]
    steps: int  # fewer than planned if its loss had not improved for long, or was no number
    planned_steps: int
    seconds: float  # wall-clock time of training in seconds, without interruptions
    # What was recorded, by `step`: `loss` and `learning_rate` of training, `eval_loss` and the
    # task's own figures at validations, and what each system decides there, by its place, such as
    # `encoder_self.2`, and the number of its unit:
    #     entropy encoder_self.2        mean entropy of the decisions, in nats
    #     even entropy encoder_self.2   the entropy if all, or all chosen, had equal weights
    #     share encoder_self.2/5        how much of the decisions goes to a unit
    #     explained encoder_self.2/side how much of the decisions a label explains, ε²
    # and what rules of training follow: `kappa encoder_self.2/5`, `alpha encoder_self.2/5`.
    history: list[dict[str, float]]
    # Place of each system that decides something to what its units are: expert, head, branch.
    units: dict[str, str] = {}
    # Systems are ranked by the first score; a trial of `--tune` has none. Rows are in the outcome.
    scores: list[Score]
    tests: dict[str, list[Score]] = {}  # the scores on further test sets by the name of the set
    test_hashes: dict[str, str] = {}  # the hash of each of these sets, see `Task.content_hash`


class Trial(_Trained):
    """A run of `--tune`: one combination of tuned values, and how well a system learned with it."""

    values: dict[str, Any]  # path of a tuned key of the recipe to its value
    steps: int
    seconds: float


class Trials(Record):
    """All trials of a system: the one with the lowest validation loss was chosen."""

    seed: int  # the seed of every trial; no run of the comparison has it
    trials: list[Trial] = Field(min_length=1)
    chosen: int  # index of the trial whose values the runs have
    notes: list[str] = []  # sentences, such as that the best value is the largest tried


class ComparisonRecord(Record):
    """What is compared on one data set: `comparison.json` of its folder, beside the runs.

    The results are in the runs; of the comparison as a whole there are measured times alone.
    """

    title: str
    task: str  # the name of the task, such as translation
    loss_name: str  # the unit of the losses, such as nats per token
    item_name: str  # what a score is a mean over, such as sentences
    # The systems in their order, the baseline first, to a line of the recipe on each, if any.
    systems: dict[str, str]
    runs: dict[str, str]  # folder of each run that was asked for, beside this file, to its system
    matched: dict[str, str] = {}  # what `--match parameters` chose for a system, in words
    tuning: dict[str, Trials] = {}  # what `--tune` tried and chose for a system
    # Time of a forward and backward pass divided by the baseline's, measured in turns.
    step_times: dict[str, OverRounds] = {}
    decoding_times: dict[str, OverRounds] = {}  # the same for a generated token
    # Part of the data, or further test set, to its number of rows and so on; see `Task.facts`.
    facts: dict[str, dict[str, int | str]] = {}
    recipe: str  # the resolved recipe, as YAML
    command: str  # the command that reproduces the comparison
    versions: dict[str, str]
    machine: str  # the class of machine, such as CPU, 2 cores


def decision_history(history: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """Returns what a run recorded of the decisions of its systems, a row for each figure.

    The columns are `step`, `kind` (such as `share`), `place`, `line` (the number of a unit, or the
    name of a label) and `value`. An entropy is divided by the entropy of even decisions.
    """
    rows = []
    for record in history:
        for name, value in record.items():
            kind, place, line = name_parts(name) or ("", "", "")
            if kind == "entropy":
                even = record.get(f"even {name}", 0.0)
                kind, value = EVEN_ENTROPY, value / even if even else 1.0
            if kind not in ("", "even entropy"):
                rows.append((record["step"], kind, place, line, value))
    return pd.DataFrame(rows, columns=["step", "kind", "place", "line", "value"])


def name_parts(name: str) -> tuple[str, str, str] | None:
    """Splits the name of a figure in a history into kind, place, and unit or label.

    Returns:
        None for a figure of no system, such as a loss.

    >>> name_parts("share encoder_self.2/5"), name_parts("even entropy blocks.0")
    (('share', 'encoder_self.2', '5'), ('even entropy', 'blocks.0', ''))
    >>> name_parts("eval_loss")
    """
    whole, _, line = name.partition("/")
    kind, _, place = whole.rpartition(" ")
    return (kind, place, line) if kind else None


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that compute results."""
    packages = ("headwise", "torch", "transformers", "tokenizers", "sacrebleu")
    return {"python": platform.python_version()} | {p: metadata.version(p) for p in packages}


def machine() -> str:
    """Returns the machine in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    threads = torch.get_num_threads()
    return f"CPU, {os.cpu_count()} cores, {threads} thread{'s' if threads > 1 else ''}"
