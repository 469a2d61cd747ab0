"""Four tasks of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

Wang et al. 2019, *GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding*, https://arxiv.org/abs/1804.07461. GLUE's test parts have no labels; as in the
papers, its development part is the test part here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from headwise.data.labelled.reading import Columns, Row, read_hub, read_tsv
from headwise.data.labelled.settings import Glue, GlueTask, Problem
from headwise.data.settings import dataset_in_words
from headwise.data.sources import file_in_words, hub_identity
from headwise.data.store import file_identity


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


def glue_identities(settings: Glue) -> list[str]:
    """Returns what tells the data of a task from others; see `file_identity`."""
    task = _GLUE[settings.task]
    if settings.folder is not None:
        return [file_identity(settings.folder / file) for _, file in _places(task).values()]
    where = (task.config, settings.revision)
    return [hub_identity(settings.name, split, *where) for split, _ in _places(task).values()]


def read_glue(
    settings: Glue, skipped: Counter[str]
) -> tuple[dict[str, Iterable[Row]], dict[str, str]]:
    """Reads a task of GLUE.

    Args:
        settings: the task, and where it is read from.
        skipped: counts rows of files that cannot be read.

    Returns:
        The rows of the training part and of the test sets by their names, and words on the corpus
        and on each part.

    Raises:
        CorpusError: a file or dataset cannot be read.
    """
    task, folder = _GLUE[settings.task], settings.folder
    given: dict[str, Iterable[Row]] = {}
    place = dataset_in_words(settings.name, task.config, settings.revision)
    words = {"corpus": f"GLUE, {settings.task}, {place if folder is None else folder}"}
    for part, (split, file) in _places(task).items():
        words[part] = f"split {split}" if folder is None else file_in_words(folder / file)
        if folder is None:
            given[part] = read_hub(
                settings.name,
                split,
                task.hub,
                config=task.config,
                revision=settings.revision,
                classes=task.classes,
            )
        else:
            rows = read_tsv(folder / file, task.files, skipped, settings.max_bytes)
            given[part] = _renamed(rows, task.file_labels)
    return given, words


def _places(task: _GlueTask) -> dict[str, tuple[str, str]]:
    """Returns the split and the file of each part."""
    return {"train": ("train", "train.tsv"), **task.tests}


def _renamed(rows: Iterable[Row], names: Mapping[str, str]) -> Iterator[Row]:
    for row in rows:
        yield row._replace(label=names.get(row.label, row.label))
