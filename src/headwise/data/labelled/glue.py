"""Four tasks of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

Wang et al. 2019, *GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding*, https://arxiv.org/abs/1804.07461. GLUE's test parts have no labels; as in the
papers, its development part is the test part here.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headwise.data.corpora import Source, files_source, split_source
from headwise.data.labelled.reading import Columns, Row, read_hub, read_tsv
from headwise.data.labelled.settings import Glue, GlueTask, Problem
from headwise.data.settings import HubSettings


class _GlueTask(NamedTuple):
    """Places of the examples of a task on the hub and in GLUE's own files."""

    config: str
    hub: Columns
    files: Columns
    classes: list[str] | None
    file_labels: dict[str, str] = {}  # noqa: RUF012  # label in the files to class, if they differ
    tests: dict[str, tuple[str, str]] = {"test": ("validation", "dev.tsv")}  # noqa: RUF012


_GLUE = {
    "MNLI": _GlueTask(
        "mnli",
        Columns("premise", "hypothesis", "label"),
        Columns("sentence1", "sentence2", "gold_label"),
        ["entailment", "neutral", "contradiction"],
        {"-": ""},  # the annotators did not agree
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
    """Returns the problem of a task, and its classes; None for a regression."""
    classes = _GLUE[name].classes
    return "regression" if classes is None else "classification", classes


def glue_sources(settings: Glue) -> dict[str, Source]:
    """Returns the sources of the training part and of the test sets by their names."""
    task, folder = _GLUE[settings.task], settings.folder
    found: dict[str, Source] = {}
    for part, (split, file) in {"train": ("train", "train.tsv"), **task.tests}.items():
        if folder is None:
            dataset = _dataset(settings)
            read = partial(read_hub, task.hub, task.classes)
            found[part] = split_source(dataset, split, read)
        else:
            path = folder / file
            found[part] = files_source([path], partial(_read_file, task, path, settings.max_bytes))
    return found


def glue_origin(settings: Glue) -> str:
    """Returns words on where a task is read from."""
    return f"GLUE, {settings.task}, {settings.folder or _dataset(settings).origin}"


def _dataset(settings: Glue) -> HubSettings:
    config = _GLUE[settings.task].config
    return HubSettings(name=settings.name, config=config, revision=settings.revision)


def _read_file(task: _GlueTask, path: Path, max_bytes: int | None) -> Iterator[Row]:
    for row in read_tsv(path, task.files, max_bytes):
        yield row._replace(label=task.file_labels.get(row.label, row.label))
