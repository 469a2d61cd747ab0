"""What a comparison would train, and about how long; nothing is trained, and nothing is written."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import torch
from rich.console import Console

from headwise.runs.folder import check_claim
from headwise.runs.plan import OneDataset, Run
from headwise.runs.run import batches, build_model
from headwise.training.batches import Batch, Batches
from headwise.training.trainer import Trainer, accelerator_for
from headwise.training.watching import last_progress

_MEASURED = 3  # steps, behind a first one that makes room for them


class Forecast(NamedTuple):
    """What is left of a run of a comparison, or of a try of `--tune`.

    Attributes:
        run: its folder.
        parameters: number of parameters of the model.
        steps: number of steps; it takes fewer if `training.patience` ends it.
        left: how many of them it has yet to take.
        seconds: about how long these take on this machine. Where a run of the system is finished,
            it is as fast as that with its validations; else some steps are measured.
    """

    run: Path
    parameters: int
    steps: int
    left: int
    seconds: float


def forecast(planned: Sequence[OneDataset], console: Console) -> list[Forecast]:
    """Returns what is left of each run, tries first.

    Raises:
        FolderError: a folder holds a run of another recipe.
    """
    found = []
    for of in planned:
        tries = of.tries()
        are_tried = all(run.result() for run in tries)
        if are_tried:
            of.choose(console)
        runs = [*tries, *of.runs()]
        for run in runs if are_tried else tries:  # before it is not known what runs are of
            check_claim(run.folder, run.recipe)
        for system in of.systems:
            own = [(run, run.result()) for run in runs if run.system == system]
            known = [result.seconds / result.steps for _, result in own if result and result.steps]
            if not known and any(_steps(run) for run, _ in own):
                line = f"timing steps of {system}"
                console.print(line, style="dim", highlight=False, markup=False)
                known = [_seconds_of_step(own[0][0])]
            for run, result in own:
                steps, done = _steps(run), int((last_progress(run.folder) or {}).get("step", 0))
                left = 0 if result else steps - done
                seconds = left * median(known or [0.0])
                found.append(Forecast(run.folder, of.parameters(system), steps, left, seconds))
    return found


def _steps(run: Run) -> int:
    """How many steps a run takes, as the trainer plans them."""
    settings = run.recipe.training
    if settings.train == "nothing":
        return 0
    per_epoch = batches(run.task, "train", settings, seed=0).per_epoch or 0
    of_epochs = (settings.epochs or 0) * per_epoch / settings.gradient_accumulation
    return settings.max_steps or math.ceil(of_epochs - 1e-6)


def _seconds_of_step(run: Run) -> float:
    """Begins to train a run in a folder that is removed, and returns how long a step takes."""
    endless = {"max_steps": 10**6, "evaluate_every": 10**6, "log_every": 10**6, "report_to": []}
    settings = run.recipe.training.model_copy(update=endless)
    train = _Timed(run, settings.gradient_accumulation)
    with TemporaryDirectory() as folder, suppress(_Enough):
        Trainer(
            build_model(run.recipe, run.task),
            cast(Batches, train),
            cast(Batches, batches(run.task, "validation", settings)),
            settings,
            Path(folder),
            accelerator_for(settings, Path(folder)),
            console=Console(quiet=True),
        ).fit()
    return (train.times[-1] - train.times[1]) / _MEASURED


class _Enough(Exception):
    """All steps that are measured have been taken."""


class _Timed:
    """The batches of a run, which note when each step begins, and end after some steps."""

    def __init__(self, run: Run, of_step: int) -> None:
        self._batches = batches(run.task, "train", run.recipe.training, seed=1)
        self._of_step, self.times = of_step, list[float]()
        self.per_epoch, self.position = self._batches.per_epoch, 0

    def __iter__(self) -> Iterator[Batch]:
        endless = iter(self._batches)
        while len(self.times) <= _MEASURED + 1:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
            yield from islice(endless, self._of_step)
        raise _Enough
