"""What is kept of the runs of an experiment: a table of JSON lines, a record a line.

    evidence/results/SCALE/EXPERIMENT.jsonl

A record is a run, a try of a system that has still to choose, what a system chose from, or a
measurement of times. It is complete in itself, so that a line that was made on one machine counts
in the table of another; and small enough to be committed.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from filelock import SoftFileLock
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from headwise.analysis.results import AttentionRecord, Tries, Try
from headwise.analysis.speed import OverRounds
from headwise.files import write_text
from headwise.tasks.scores import RECORD, Score

LOSS = "loss"  # the name of the rows of the test loss
MEASUREMENTS = 3  # of times: each differs from the others by more than its own rounds do


# Records stay as they were made: a key of a former edition is passed over.
_MEASURED: ConfigDict = {**RECORD, "extra": "ignore"}


class RecordedAttention(AttentionRecord):
    """What the heads of a system did, as it was recorded."""

    model_config = _MEASURED


class RecordedTries(Tries):
    """What a system chose from, as it was recorded."""

    model_config = _MEASURED


class Run(BaseModel):
    """One system trained with one seed, as the claims need it."""

    model_config = _MEASURED

    kind: Literal["run"] = "run"
    at: str  # question and value, as in `data-size/0.3`; empty for the experiment's own
    dataset: str | None
    system: str
    seed: int
    recipe: str  # its hash, without the folders of a machine
    data: str  # their hash
    parameters: int
    macs: int
    steps: int
    minutes: float
    validation_loss: float  # of the final model
    history: list[dict[str, float]]  # as in `RunResult`, thinned
    scores: list[Score]
    loss: float  # on the test part, given the labels
    ablations: dict[str, float]  # an ablation to the same loss with it
    ablated_scores: dict[str, list[Score]]
    attention: list[RecordedAttention]
    versions: dict[str, str]
    machine: str
    # `rows_key` to a row of numbers for each test item, to resample; scores have none themselves.
    rows: dict[str, Any]

    @property
    def key(self) -> tuple[str | int, ...]:
        return (self.kind, self.at, self.dataset or "", self.system, self.seed)

    def __hash__(self) -> int:
        return id(self)  # what was read does not change

    def __str__(self) -> str:
        return " ".join(filter(None, (self.at, self.dataset, self.system, f"seed {self.seed}")))

    def rows_of(self, key: str) -> list[list[float]]:
        """Returns the rows of one score; none if it is not made from items."""
        rows = np.asarray(self.rows.get(key, []))
        if rows.dtype.kind == "f":
            rows = rows.astype(np.float32)  # as they were before they became text
        found: list[list[float]] = rows.astype(np.float64).tolist()
        return found

    def scored(self, score: Score, ablation: str | None = None) -> Score:
        """Returns a score of this run with its rows."""
        return score.model_copy(update={"rows": self.rows_of(rows_key(score.name, ablation))})

    def loss_under(self, ablation: str | None) -> Score:
        """Returns the loss as a score with its rows."""
        value = self.loss if ablation is None else self.ablations[ablation]
        loss = Score(name=LOSS, value=value, statistic="ratio", lower_is_better=True)
        return self.scored(loss, ablation)


class Tried(BaseModel):
    """A try of a system that has still to choose: none is lost with the folder of runs."""

    model_config = RECORD

    kind: Literal["try"] = "try"
    at: str
    system: str
    recipe: str  # its hash without the values
    tried: Try

    @property
    def key(self) -> tuple[str | int, ...]:
        return (self.kind, self.at, self.system, self.recipe, str(self.tried.values))


class Choice(BaseModel):
    """What a system chose from before its seeds were trained."""

    model_config = RECORD

    kind: Literal["choice"] = "choice"
    at: str
    system: str
    recipe: str  # its hash before the choice
    keys: list[dict[str, Any]]  # what was declared of the keys, in their order
    tries: RecordedTries

    @property
    def key(self) -> tuple[str | int, ...]:
        return (self.kind, self.at, self.system)

    @property
    def values(self) -> dict[str, Any]:
        """Path of a tuned key to the chosen value."""
        return self.tries.tries[self.tries.chosen].values


class Times(BaseModel):
    """One measurement of the times of systems, relative to those of the first of the experiment."""

    model_config = _MEASURED

    kind: Literal["times"] = "times"
    number: int
    baseline: str
    step: dict[str, OverRounds]  # of a forward and backward pass
    token: dict[str, OverRounds]  # of decoding a token; empty if none does
    machine: str
    versions: dict[str, str]

    @property
    def key(self) -> tuple[str | int, ...]:
        return (self.kind, self.number)


Record = Run | Tried | Choice | Times
Kind = TypeVar("Kind", Run, Tried, Choice, Times)
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


class Table(NamedTuple):
    """The records of an experiment, which several processes may write, one at a time."""

    path: Path

    def find(self, kind: type[Kind], **fields: object) -> list[Kind]:
        """Returns the records of a kind with these values, such as a system's, in their order."""
        return [
            record
            for record in self.records()
            if isinstance(record, kind)
            and all(getattr(record, name) == value for name, value in fields.items())
        ]

    def records(self) -> list[Record]:
        """Returns all records, by kind and name, and by seed or number."""
        if not self.path.is_file():
            return []
        stamp = self.path.stat()
        return _read(self.path, stamp.st_mtime_ns, stamp.st_size)

    def put(self, record: Record) -> None:
        """Writes a record, in the place of one of the same run, try, choice or measurement."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with SoftFileLock(self.path.with_suffix(".lock")):
            known = self.path.read_bytes().splitlines() if self.path.is_file() else []
            # The others keep their lines, letter by letter.
            lines = {of.key: line for of, line in zip(self.records(), known, strict=True)}
            lines[record.key] = record.model_dump_json().encode()
            if isinstance(record, Choice):  # which has the tries
                for tried in self.find(Tried, at=record.at, system=record.system):
                    del lines[tried.key]
            write_text(self.path, "".join(lines[key].decode() + "\n" for key in sorted(lines)))


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> list[Record]:
    """Returns the records of a file, which is read again once it has changed."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(_RECORD.validate_json(line))
        except ValidationError as error:
            raise ValueError(
                f"{path}, line {number}, cannot be read ({error.errors()[0]['msg']}): copy the "
                f"file again, or delete the line, and python -m evidence run makes it anew"
            ) from None
    return found


def check_data(runs: Sequence[Run]) -> None:
    """Raises `ValueError` if runs were made on different data: no test may rest on both."""
    for one, other in pairwise(runs):
        if one.data != other.data:
            raise ValueError(
                f"{one} and {other} were made on different data, expected the same: keep the runs "
                f"on one of them in another folder, with --results"
            )


def finite(runs: Sequence[Run]) -> list[Run]:
    """Returns those runs that did not diverge."""
    return [run for run in runs if math.isfinite(_last_loss(run))]


def sound(runs: Sequence[Run]) -> list[Run]:
    """Returns those runs of a system that neither diverged nor collapsed.

    A run has collapsed if its last validation loss is more than a twentieth above that of the best
    seed.
    """
    kept = finite(runs)
    lowest = min(map(_last_loss, kept), default=0.0)
    return [run for run in kept if _last_loss(run) <= 1.05 * lowest]


def _last_loss(run: Run) -> float:
    """The validation loss at the end of training; the model may be that of the best validation."""
    losses = [record["eval_loss"] for record in run.history if "eval_loss" in record]
    return losses[-1] if losses else run.validation_loss


def rows_key(score: str, ablation: str | None = None) -> str:
    """Returns the name under which rows are kept.

    >>> rows_key("BLEU"), rows_key("loss", "system=random")
    ('BLEU', 'loss with system=random')
    """
    return f"{score} with {ablation}" if ablation else score


def small_rows(values: Any) -> list[Any]:
    """Returns rows as numbers of few digits: counts as integers, others as 32 bits hold them.

    >>> small_rows([[1.0, 2.0]]), small_rows([[0.1 + 0.2]])
    ([[1, 2]], [[0.3]])
    """
    array = np.asarray(values, dtype=np.float64)
    if np.isfinite(array).all() and (array == np.rint(array)).all() and abs(array).max() < 2**31:
        rows: list[Any] = array.astype(np.int64).tolist()
    else:  # the shortest text that gives the same 32 bits again
        rows = array.astype(np.float32).astype(str).astype(np.float64).tolist()
    return rows


def thinned(history: Sequence[Mapping[str, float]], many: int = 100) -> list[dict[str, float]]:
    """Returns the validations of a run, and about a hundred means of its training loss."""
    records = [record for record in history if "loss" in record]
    at_once = max(1, len(records) // many)
    kept = [dict(record) for record in history if "eval_loss" in record]
    for start in range(0, len(records), at_once):
        some = records[start : start + at_once]
        kept.append({"step": some[-1]["step"], "loss": float(np.mean([r["loss"] for r in some]))})
    return sorted(kept, key=lambda record: (record["step"], "eval_loss" in record))
