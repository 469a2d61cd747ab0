"""Four tasks of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

Wang et al. 2019, *GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding*, https://arxiv.org/abs/1804.07461. Its test parts have no labels: its development
part is the test part here, as in the papers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from headwise.tasks.text.labelled import Problem, Row
from headwise.tasks.text.labelled_sources import Columns, read_hub, read_tsv

GlueTask = Literal["MNLI", "QNLI", "SST-2", "STS-B"]


class _GlueTask(NamedTuple):
    """Where a task's examples are, on the hub and in GLUE's own files."""

    config: str
    hub: Columns
    files: Columns
    classes: list[str] | None
    file_labels: dict[str, str] = {}  # noqa: RUF012  # label in the files to class, if it differs
    tests: dict[str, tuple[str, str]] = {"test": ("validation", "dev.tsv")}  # noqa: RUF012


_GLUE = {
    "MNLI": _GlueTask(
        "mnli",
        Columns("premise", "hypothesis", "label"),
        Columns("sentence1", "sentence2", "gold_label"),
        ["entailment", "neutral", "contradiction"],
        {"-": ""},  # those who labelled it did not agree
        {
            "test matched": ("validation_matched", "dev_matched.tsv"),
            "test mismatched": ("validation_mismatched", "dev_mismatched.tsv"),
        },
    ),
    "QNLI": _GlueTask(
        "qnli",
        Columns("question", "sentence", "label"),
        Columns("question", "sentence", "label"),
        ["entailment", "not_entailment"],
    ),
    "SST-2": _GlueTask(
        "sst2",
        Columns("sentence", None, "label"),
        Columns("sentence", None, "label"),
        ["negative", "positive"],
        {"0": "negative", "1": "positive"},
    ),
    "STS-B": _GlueTask(
        "stsb",
        Columns("sentence1", "sentence2", "label"),
        Columns("sentence1", "sentence2", "score"),
        None,
    ),
}


def glue_classes(name: GlueTask) -> tuple[Problem, list[str] | None]:
    """What a task asks for, and its classes; a regression has none."""
    classes = _GLUE[name].classes
    return "regression" if classes is None else "classification", classes


def read_glue(
    name: GlueTask, folder: Path | None, dataset: str, revision: str | None, skipped: Counter[str]
) -> tuple[dict[str, Iterable[Row]], str]:
    """The rows of a task's training part and of its test sets, and words on where they come from.

    Args:
        name: of the task.
        folder: with GLUE's own files; None takes the hub.
        dataset, revision: on the hub.
        skipped: counts rows of files that cannot be read.

    Raises:
        CorpusError: a file or dataset that cannot be read.
    """
    task = _GLUE[name]
    given: dict[str, Iterable[Row]] = {}
    for part, (split, file) in {"train": ("train", "train.tsv"), **task.tests}.items():
        if folder is None:
            given[part] = read_hub(
                dataset,
                split,
                task.hub,
                config=task.config,
                revision=revision,
                classes=task.classes,
            )
        else:
            given[part] = _renamed(read_tsv(folder / file, task.files, skipped), task.file_labels)
    origin = f"GLUE, {name}, " + (f"dataset {dataset}" if folder is None else str(folder))
    return given, origin


def _renamed(rows: Iterable[Row], names: Mapping[str, str]) -> Iterator[Row]:
    for row in rows:
        yield row._replace(label=names.get(row.label, row.label))
