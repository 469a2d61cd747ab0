"""Four tasks of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

Wang et al. 2019, *GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding*, https://arxiv.org/abs/1804.07461. GLUE's test parts have no labels; as in the
papers, its development part is the test part here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headwise.tasks.further_tests import dataset_in_words
from headwise.tasks.sources import file_in_words
from headwise.tasks.text.labelled.reading import Columns, Row, read_hub, read_tsv
from headwise.tasks.text.labelled.settings import GlueTask, Problem


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


def read_glue(
    name: GlueTask,
    folder: Path | None,
    dataset: str,
    revision: str | None,
    skipped: Counter[str],
    max_bytes: int | None = None,
) -> tuple[dict[str, Iterable[Row]], dict[str, str], str]:
    """Reads a task of GLUE.

    Args:
        name: name of the task.
        folder: folder with GLUE's own files; None reads the hub.
        dataset: name of the dataset on the hub.
        revision: tag or commit of the dataset on the hub.
        skipped: counts rows of files that cannot be read.
        max_bytes: the most bytes of a file; see `read_lines`.

    Returns:
        The rows of the training part and of the test sets by their names, the file or split of
        each in words, and words on where all of them come from.

    Raises:
        CorpusError: a file or dataset cannot be read.
    """
    task = _GLUE[name]
    given: dict[str, Iterable[Row]] = {}
    origins: dict[str, str] = {}
    for part, (split, file) in {"train": ("train", "train.tsv"), **task.tests}.items():
        origins[part] = f"split {split}" if folder is None else file_in_words(folder / file)
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
            given[part] = _renamed(
                read_tsv(folder / file, task.files, skipped, max_bytes), task.file_labels
            )
    place = dataset_in_words(dataset, task.config, revision) if folder is None else str(folder)
    return given, origins, f"GLUE, {name}, {place}"


def _renamed(rows: Iterable[Row], names: Mapping[str, str]) -> Iterator[Row]:
    for row in rows:
        yield row._replace(label=names.get(row.label, row.label))
