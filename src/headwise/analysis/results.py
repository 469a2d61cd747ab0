"""What a comparison found: the record that runs leave behind and the report is made of."""

import math
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
from pydantic import Field

from headwise.analysis.decisions.snapshots import AttentionRecord, DecisionCourse
from headwise.analysis.how_soon import HowSoon
from headwise.analysis.speed import OverRounds
from headwise.analysis.statistics.estimates import Difference, Estimate
from headwise.analysis.words import Words
from headwise.tasks.scores import Picture, Record, Sample, Score


class Course(Record):
    """What a rule of training recorded of one system over the training."""

    site: str  # the site: encoder_self, decoder_self or decoder_cross
    layer: int  # the layer, counted from 0
    system: str  # the system's name in plans, a key of `RunResult.words`
    whole_layer: bool = False  # whether the system takes the place of a layer
    steps: list[int]  # the steps after which it was recorded, ascending
    # Name of a recorded quantity to a row of numbers for each of these steps.
    values: dict[str, list[list[float]]]


class EarlyStop(Record):
    """Where a run ended early: its validation loss had not improved for long, or was no number.

    Which of the two it was, the last validation loss tells.
    """

    planned_steps: int  # the number of steps that the run could have had
    best_step: int | None  # the step of its lowest validation loss; None if no loss was finite


class RunResult(Record):
    """One system trained with one seed."""

    system: str
    seed: int
    parameters: int
    # How many of the parameters learned, see `training.train`; None stands for all of them.
    trained_parameters: int | None = None
    macs: int  # multiply-accumulates of one forward pass, see macs_lengths
    # Number of positions in that pass, by `encoder` and `decoder`; a model with one of them
    # has only its own.
    macs_lengths: dict[str, int]
    steps: int
    # Set if `training.patience` ended the run, or a validation loss that is no number; `steps`
    # says after which step.
    early_stop: EarlyStop | None = None
    seconds: float  # wall-clock time of training in seconds, without interruptions
    validation_loss: float  # validation loss of the final model, in the task's unit
    # Records with step and loss (training), or step, eval_loss and the figures that the task
    # measures, each under its name (validation).
    history: list[dict[str, float]]
    # Systems are ranked by the first score; a try of `--tune` has none.
    scores: list[Score]
    tests: dict[str, list[Score]] = {}  # the scores on further test sets by the name of the set
    # What the heads of each system did; empty for standard attention.
    attention: list[AttentionRecord]
    courses: list[Course] = []  # what rules of training recorded; empty if they record nothing
    # How the decisions of each system moved over the training; empty for standard attention,
    # and if no snapshots were taken.
    snapshots: list[DecisionCourse] = []
    words: dict[str, Words] = {}  # name of a system in plans to the words for its decisions


class FurtherTest(Record):
    """A system on a further test set, over its seeds."""

    # Name of a score to its mean over the seeds that did not diverge.
    estimates: dict[str, Estimate]
    # The difference of the first score to the baseline's, corrected over all systems and
    # further test sets; None as for the test part.
    difference: Difference | None


class Try(Record):
    """One combination of tuned values and how well a system learned with it."""

    values: dict[str, Any]  # path of a tuned key of the recipe to its value
    # Validation loss of the final model; not finite if the training diverged.
    validation_loss: float
    steps: int
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether the validation loss is not finite; such a try is never chosen."""
        return not math.isfinite(self.validation_loss)


class Tries(Record):
    """How the tuned values of a system were chosen: by validation loss, among equal budgets."""

    seed: int  # the seed of every try; no run of the comparison has it
    tries: list[Try] = Field(min_length=1)
    chosen: int  # index of the try whose values the runs have
    notes: list[str] = []  # sentences, such as that the best value is the largest tried


class SystemSummary(Record):
    """A system over its seeds."""

    name: str
    description: str  # A line from the recipe. It may be empty.
    matched: str = ""  # what `--match parameters` chose, in words; empty if it was not given
    tuning: Tries | None = None  # what `--tune` tried and chose; None if it was not given
    runs: list[RunResult] = Field(min_length=1)
    # Time of a forward and backward pass divided by the baseline's, measured in turns.
    relative_step_time: OverRounds | None
    # How soon it learns what the baseline does, and how fast it decodes.
    how_soon: HowSoon
    # Name of a score to its mean over the seeds that did not diverge.
    estimates: dict[str, Estimate] = {}
    # The difference of the first score to the baseline's; None for the baseline itself, and if
    # there is nothing to compare.
    difference: Difference | None = None
    tests: dict[str, FurtherTest] = {}  # name of a further test set to what the system gave on it


class ComparedSample(Record):
    """Something of the test part and what each system makes of it (first seed)."""

    given: dict[str, str]  # label to text: first what a system sees, then what is expected
    made: dict[str, str]  # system to the text that it made


class ComparedPicture(Record):
    """The same picture of several systems (first seed)."""

    title: str
    captions: dict[str, str] = {}  # system to caption. Systems may be missing.
    pngs: dict[str, str]  # system to PNG file in base64. Systems may be missing.


class Comparison(Record):
    """Everything the report shows."""

    title: str
    task: str  # the name of the task, such as translation
    loss_name: str  # the unit of the losses, such as nats per token
    item_name: str  # what the bootstrap draws, such as sentences
    baseline: str  # the system that the others are compared with
    systems: list[SystemSummary] = Field(min_length=1)
    missing: list[str] = []  # the runs that are not finished, as progress bars call them
    samples: list[ComparedSample] = []
    pictures: list[ComparedPicture] = []
    # Part of the data, or further test set, to its number of rows and so on; see `Task.facts`.
    facts: dict[str, dict[str, int | str]] = {}
    recipe: str  # the resolved recipe, as YAML
    command: str  # the command that reproduces the comparison
    versions: dict[str, str]
    machine: str  # the class of machine, such as CPU, 2 cores

    @property
    def loss_has_perplexity(self) -> bool:
        """Whether the exponential of the loss is a perplexity of tokens."""
        return self.loss_name == "nats per token"


class Benchmark(Record):
    """Comparisons of the same systems on several data sets."""

    title: str
    # Name of a data set to the comparison on it.
    comparisons: dict[str, Comparison] = Field(min_length=1)
    missing: list[str] = []  # the runs on all data sets that are not finished


def diverged(run: RunResult) -> bool:
    """Whether the validation loss of a run is not finite."""
    return not math.isfinite(run.validation_loss)


def sound_runs(system: SystemSummary) -> list[RunResult]:
    """Returns the runs that count in means: those that did not diverge."""
    return [run for run in system.runs if not diverged(run)]


def first_score(comparison: Comparison) -> Score:
    """Returns the score that ranks systems.

    Its name, digits and direction are those of all runs; its value is that of one run.
    """
    return comparison.systems[0].runs[0].scores[0]


def find_baseline(comparison: Comparison) -> SystemSummary | None:
    """Returns the system that others are compared with, or None if it is not in the comparison."""
    return next((s for s in comparison.systems if s.name == comparison.baseline), None)


def incomplete(results: Comparison | Benchmark) -> str:
    """Says which runs a comparison lacks, for the top of the report; empty if it has all."""
    if not results.missing:
        return ""
    comparisons = [results] if isinstance(results, Comparison) else results.comparisons.values()
    finished = sum(len(system.runs) for found in comparisons for system in found.systems)
    return (
        f"{finished} of {finished + len(results.missing)} runs are finished; these are missing: "
        f"{', '.join(results.missing)}."
    )


def compare_samples(samples: Mapping[str, Sequence[Sample]]) -> list[ComparedSample]:
    """The systems' samples of the same items side by side, first those that differ."""
    found: dict[tuple[tuple[str, str], ...], ComparedSample] = {}
    for system, of_system in samples.items():
        for sample in of_system:
            key = tuple(sample.given.items())
            compared = found.setdefault(key, ComparedSample(given=sample.given, made={}))
            compared.made[system] = sample.made
    return sorted(found.values(), key=lambda sample: len(set(sample.made.values())) == 1)


def compare_pictures(pictures: Mapping[str, Sequence[Picture]]) -> list[ComparedPicture]:
    """The systems' pictures of the same title side by side."""
    found: dict[tuple[str, int], ComparedPicture] = {}
    for system, of_system in pictures.items():
        titles: Counter[str] = Counter()
        for picture in of_system:
            key = (picture.title, titles[picture.title])
            titles[picture.title] += 1
            compared = found.setdefault(key, ComparedPicture(title=picture.title, pngs={}))
            compared.pngs[system] = picture.png
            compared.captions[system] = picture.caption
    return list(found.values())


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
