"""What is kept of a run for the claims: a JSON file and, beside it, the rows of its test items.

    evidence/SCALE/EXPERIMENT/SYSTEM-seed1.json     scores, curves, decisions, versions, minutes
    evidence/SCALE/EXPERIMENT/SYSTEM-seed1.npz      a row for each test item, to resample
    evidence/SCALE/EXPERIMENT/SYSTEM-tuning.json    what the system chose from, and what it chose
    evidence/SCALE/EXPERIMENT/times-NUMBER.json     times of steps and tokens, measured in turns
    evidence/SCALE/EXPERIMENT/seconds.json          seconds of a step, to plan with

Runs in which a question varies a key lie in EXPERIMENT/why/QUESTION/VALUE/, under the same names.
With several data sets, each has a folder in that of the experiment. A file is complete in itself,
so that it can be made on one machine and read on another; all are small enough to be committed.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from headwise.analysis.decisions.snapshots import AttentionRecord
from headwise.analysis.results import RunResult, Tries
from headwise.analysis.speed import OverRounds
from headwise.files import write_text, written_whole
from headwise.runs.grid import Grid, dotted
from headwise.tasks.outcome import RECORD, Outcome, Score

LOSS = "loss"  # the name of the rows of the test loss
MEASUREMENTS = 3  # of times: each differs from the others by more than its own rounds do
SECONDS = "seconds.json"
_TRAINING_RECORDS = 100  # how many records of the training loss are kept of a run


class StoredRun(BaseModel):
    """One system trained with one seed, as the claims need it."""

    model_config = RECORD

    system: str
    seed: int
    recipe: str = Field(description="Hash of the recipe, without the folders of a machine.")
    data: str = Field(description="Hash of the data.")
    fingerprint: list[float] = Field(description="What the code computed, see `fingerprint`.")
    parameters: int
    macs: int
    steps: int
    minutes: float = Field(description="Wall-clock time of training.")
    threads: list[int]
    validation_loss: float = Field(description="Of the final model, in the task's unit.")
    best_step: int | None = Field(description="The step of the lowest validation loss.")
    history: list[dict[str, float]] = Field(
        description="As in `RunResult`; of the training loss about a hundred records."
    )
    scores: list[Score]
    tests: dict[str, list[Score]] = Field(description="Name of a further test set to its scores.")
    loss: float = Field(description="Loss on the test part, in the task's unit, given the labels.")
    ablations: dict[str, float] = Field(
        description="An ablation to the same loss with it; without training again."
    )
    ablated_scores: dict[str, list[Score]] = Field(
        description="An ablation to the scores with it; of those that a claim scores."
    )
    attention: list[AttentionRecord]
    versions: dict[str, str]
    machine: str


class StoredTries(BaseModel):
    """What a system chose from before its seeds were trained."""

    model_config = RECORD

    recipe: str = Field(description="Hash of the recipe before the choice.")
    grid: dict[str, list[Any]] = Field(description="Path of a tuned key to its values.")
    steps: int | None = Field(description="Steps of a try; None for as many as a run.")
    equal_within: float = Field(0.0, description="Losses so near to the lowest count as equal.")
    tries: Tries

    @classmethod
    def from_grid(cls, recipe: str, grid: Grid, tries: Tries) -> "StoredTries":
        """Returns the record of tries at the values of a grid."""
        values, steps, equal_within = _of_grid(grid)
        return cls(recipe=recipe, grid=values, steps=steps, equal_within=equal_within, tries=tries)

    def are_from(self, recipe: str, grid: Grid) -> bool:
        """Returns whether the tries are those of this recipe, at the values of this grid."""
        return (self.recipe, self.grid, self.steps, self.equal_within) == (recipe, *_of_grid(grid))

    @property
    def chosen_values(self) -> dict[str, Any]:
        """Path of a tuned key to the chosen value."""
        return self.tries.tries[self.tries.chosen].values


def _of_grid(grid: Grid) -> tuple[dict[str, list[Any]], int | None, float]:
    """What a record of tries says of the grid."""
    values = {dotted(path): values for path, values in grid.values.items()}
    return values, grid.steps, grid.equal_within


class StoredTimes(BaseModel):
    """One measurement of the times of systems, relative to those of the first of the experiment."""

    model_config = RECORD

    baseline: str
    step: dict[str, OverRounds] = Field(description="Of a forward and backward pass.")
    token: dict[str, OverRounds] = Field(description="Of decoding a token; empty if none does.")
    fingerprints: dict[str, list[float]] = Field(description="As in `StoredRun`, by system.")
    machine: str
    versions: dict[str, str]

    def of(self, quantity: str) -> dict[str, OverRounds]:
        """Returns `step` or `token`, whichever a claim's quantity is about."""
        return self.step if quantity == "time of a step" else self.token


class StoredSeconds(BaseModel):
    """Measured processor time of the systems of an experiment, to plan with."""

    model_config = RECORD

    step: dict[str, float] = Field(description="Seconds of a training step, by system.")


def run_path(folder: Path, system: str, seed: int) -> Path:
    """Returns the path of the record of a run in the folder of its experiment."""
    return folder / f"{system}-seed{seed}.json"


def tuning_path(folder: Path, system: str) -> Path:
    """Returns the path of the record of what a system chose."""
    return folder / f"{system}-tuning.json"


def write_run(path: Path, run: StoredRun, rows: Mapping[str, Any]) -> None:
    """Writes the record of a run and its rows.

    Args:
        path: of the record.
        run: the record.
        rows: name of a score, of a further test set with a score, or of an ablation, to a row for
            each item; see `rows_key`.
    """
    with written_whole(path.with_suffix(".npz")) as partial, partial.open("wb") as file:
        arrays: Any = {name: _small(values) for name, values in rows.items()}
        np.savez_compressed(file, **arrays)
    write_text(path, run.model_dump_json(indent=1) + "\n")


def read_run(path: Path) -> StoredRun | None:
    """Returns the record of a run; None if there is none, or if an older headwise has written it.

    Raises:
        ValueError: the file is damaged.
    """
    return read_record(StoredRun, path)


def read_rows(path: Path, key: str) -> np.ndarray | None:
    """Returns the rows of one score of a run; None if it is not made from items.

    Args:
        path: of the record.
        key: as in `write_run`.

    Raises:
        ValueError: the file of the rows is missing or damaged.
    """
    rows = path.with_suffix(".npz")
    try:
        with np.load(rows) as kept:
            return kept[key].astype(np.float64) if key in kept else None
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{rows} cannot be read ({error}): copy it again, or delete {path}, and headwise "
            f"claims run makes both anew"
        ) from None


def read_tries(path: Path) -> StoredTries | None:
    """Returns what a system chose from; None if that is not known."""
    return read_record(StoredTries, path)


def times_paths(folder: Path) -> list[Path]:
    """Returns the paths of the measurements of times in the folder of their experiment."""
    return [folder / f"times-{number}.json" for number in range(1, MEASUREMENTS + 1)]


def read_times(path: Path) -> StoredTimes | None:
    """Returns one measurement of the times of an experiment; None if it is not there."""
    return read_record(StoredTimes, path)


def read_seconds(folder: Path) -> dict[str, float]:
    """Returns the measured seconds of a step of the systems of an experiment."""
    kept: StoredSeconds | None = read_record(StoredSeconds, folder / SECONDS)
    return {} if kept is None else kept.step


def write_seconds(folder: Path, seconds: dict[str, float]) -> None:
    """Writes the measured seconds of a step of the systems of an experiment."""
    write_text(folder / SECONDS, StoredSeconds(step=seconds).model_dump_json(indent=1) + "\n")


def rows_key(score: str, *, test: str | None = None, ablation: str | None = None) -> str:
    """Returns the name under which rows are kept.

    >>> rows_key("BLEU"), rows_key("BLEU", test="news"), rows_key("loss", ablation="system=random")
    ('BLEU', 'BLEU on news', 'loss with system=random')
    """
    name = score
    name += f" on {test}" if test else ""
    name += f" with {ablation}" if ablation else ""
    return name


def rows_of(outcome: Outcome) -> np.ndarray | None:
    """Returns what each test item counts for in the first score, a row an item; None if unknown."""
    rows = outcome.items.get(outcome.scores[0].name)
    return None if rows is None else np.asarray(rows)


def thinned(result: RunResult) -> list[dict[str, float]]:
    """Returns the validations of a run, and about a hundred records of its training loss.

    Each of these is the mean over the records between, as if it had been recorded less often.
    """
    records = [record for record in result.history if "loss" in record]
    at_once = max(1, len(records) // _TRAINING_RECORDS)
    kept = [record for record in result.history if "eval_loss" in record]
    for start in range(0, len(records), at_once):
        some = records[start : start + at_once]
        kept.append({"step": some[-1]["step"], "loss": float(np.mean([r["loss"] for r in some]))})
    return sorted(kept, key=lambda record: (record["step"], "eval_loss" in record))


def best_step(history: Sequence[Mapping[str, float]]) -> int | None:
    """Returns the step of the lowest validation loss; None if none is finite."""
    validations = [r for r in history if math.isfinite(r.get("eval_loss", math.nan))]
    if not validations:
        return None
    return int(min(validations, key=lambda r: r["eval_loss"])["step"])


def _small(values: Any) -> np.ndarray:
    """Numbers in as few bytes as hold them: counts as integers, others with seven digits."""
    array = np.asarray(values, dtype=np.float64)
    if np.isfinite(array).all() and (array == np.rint(array)).all() and abs(array).max() < 2**31:
        return array.astype(np.int32)
    return array.astype(np.float32)


def read_record(kind: Any, path: Path) -> Any:
    """Returns a record of a kind; None if there is none, or if an older headwise has written it.

    Raises:
        ValueError: the file cannot be read, or is no JSON.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        if (problem := error.errors()[0])["type"] != "json_invalid":
            return None
        damage = problem["msg"]
    except OSError as error:
        damage = str(error)
    raise ValueError(
        f"{path} cannot be read ({damage}): copy it again, or delete it, and headwise claims run "
        f"makes it anew"
    )
