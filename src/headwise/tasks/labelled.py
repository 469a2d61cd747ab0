"""Labelled texts: settings, reading, and a division into parts that leaks nothing.

An example is a text, or a pair of texts, with a label: the name of a class, or a number. Parts that
are given are taken as they are; parts that are not are divided off the training examples by a hash
of their first text, so that a text that occurs twice (as every premise of MNLI does) never lands
in two parts.

Rows that cannot be examples (with an empty text, with too few or too many fields, without a label)
are skipped and counted. What would be read wrongly is an error that names the file and the line.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from headwise.tasks.corpora import part_of
from headwise.tasks.sources import CorpusError, load_hub_split, read_lines, text_field
from headwise.tasks.task import PARTS

Problem = Literal["classification", "regression"]
# Packages that headwise or what it needs installs, written in Python and well documented.
PACKAGES = ("huggingface_hub", "matplotlib", "networkx", "numpy", "pandas")

_PROBLEM_DESCRIPTION = "classification: labels are names of classes; regression: they are numbers"
_CLASSES = Field(
    None,
    description="the classes, in the order of the model's outputs; default: the labels of the "
    "training data, sorted",
)

# --- settings ---------------------------------------------------------------------------------


class ExampleLimits(BaseModel):
    """What all examples have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_length: int = Field(
        512,
        ge=8,
        description="subwords of an example, special tokens included; longer ones are cut at the "
        "end, of a pair the longer text first",
    )


class LabelledSettings(ExampleLimits):
    """What labelled texts have in common that come without validation and test parts."""

    validation_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="share of the training examples that becomes the validation part, where none "
        "is given",
    )
    test_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="share of the training examples that becomes the test part, where none is "
        "given",
    )

    @property
    def fractions(self) -> tuple[float, float]:
        """Shares of the validation and the test part."""
        return self.validation_fraction, self.test_fraction


class Docstrings(LabelledSettings):
    """The first paragraphs of docstrings, labelled with the Python package they stand in.

    Small, real and offline: they are read from the source files of packages that are installed
    with headwise. Each package gives as many, so that the smallest sets the size.
    """

    corpus: Literal["docstrings"] = Field("docstrings", description="the built-in examples")
    packages: list[str] = Field(
        default_factory=lambda: list(PACKAGES),
        min_length=2,
        description="the packages, which are the classes",
    )


class Glue(LabelledSettings):
    """A task of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

    GLUE's test parts have no labels: its development part is the test part here, as in the papers,
    and the validation part is a share of the training part.
    """

    corpus: Literal["glue"] = Field("glue", description="a task of GLUE")
    task: Literal["MNLI", "QNLI", "SST-2", "STS-B"] = Field(description="which of its tasks")
    name: str = Field(
        "nyu-mll/glue", description="name of the dataset on the Hugging Face hub, or its folder"
    )
    revision: str | None = Field(
        None, description="branch, tag or commit of the dataset, to pin its content"
    )
    folder: Path | None = Field(
        None,
        description="folder of the task with GLUE's train.tsv and dev.tsv; then nothing comes "
        "from the hub",
    )


class LabelledFiles(LabelledSettings):
    """Files of tab-separated values whose first line names the columns; no quoting."""

    corpus: Literal["files"] = Field("files", description="files of tab-separated values")
    train: Path = Field(description="the training examples, UTF-8; gzip if the name ends in .gz")
    validation: Path | None = Field(
        None, description="the validation examples; without them, a share of the training ones"
    )
    test: Path | None = Field(
        None, description="the test examples; without them, a share of the training ones"
    )
    text_field: str = Field("sentence", description="column of the text")
    pair_field: str | None = Field(None, description="column of the second text, for pairs")
    label_field: str = Field("label", description="column of the label")
    problem: Problem = Field("classification", description=_PROBLEM_DESCRIPTION)
    classes: list[str] | None = _CLASSES


class LabelledHub(LabelledSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset")
    name: str = Field(
        description="name on the hub, or a local folder with train.jsonl, test.parquet, ..."
    )
    config: str | None = Field(None, description="configuration (subset) of the dataset")
    revision: str | None = Field(
        None, description="branch, tag or commit of the dataset, to pin its content"
    )
    text_field: str = Field("sentence", description="column of the text")
    pair_field: str | None = Field(None, description="column of the second text, for pairs")
    label_field: str = Field("label", description="column of the label")
    train_split: str = Field(
        "train", description="split to train on; a slice such as train[:100000] takes a part"
    )
    validation_split: str | None = Field(
        "validation", description="split to validate on; null takes a share of the training split"
    )
    test_split: str | None = Field(
        "test", description="split to test on; null takes a share of the training split"
    )
    problem: Problem = Field("classification", description=_PROBLEM_DESCRIPTION)
    classes: list[str] | None = _CLASSES


ExampleSettings = Annotated[
    Docstrings | Glue | LabelledFiles | LabelledHub, Field(discriminator="corpus")
]


# --- examples ---------------------------------------------------------------------------------


class Example(NamedTuple):
    """A text, or two, and what is to be said of it."""

    text: str
    pair: str | None
    label: str | float  # the name of a class, or a number


class Columns(NamedTuple):
    """Names of the columns that examples are read from."""

    text: str
    pair: str | None
    label: str


class Row(NamedTuple):
    """An example as it was read, with words for messages on where it stands."""

    where: str
    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class Labelled:
    """Examples in parts, none of them empty.

    Attributes:
        train, validation: examples.
        test: examples of each test set by its name; a single one has the name "".
        classes: names of the classes in the order of the model's outputs; None for a regression.
        notes: facts for the screen and the report: label to words.
    """

    train: list[Example]
    validation: list[Example]
    test: dict[str, list[Example]]
    classes: list[str] | None
    notes: dict[str, str]

    def digest(self) -> str:
        """A hash of all examples, their division and the order of the classes."""
        digest = hashlib.sha256(repr(self.classes).encode())
        tests = [(f"test {name}", examples) for name, examples in self.test.items()]
        for part, examples in [("train", self.train), ("validation", self.validation), *tests]:
            for example in examples:
                digest.update(repr((part, *example)).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_labelled(settings: ExampleSettings) -> Labelled:
    """Read labelled texts and divide off the parts that are not given.

    Args:
        settings: one of :class:`Docstrings`, :class:`Glue`, :class:`LabelledFiles`,
            :class:`LabelledHub`.

    Raises:
        CorpusError: data that cannot be read, an unknown label, or too little to fill the parts.
            The message names the file, and the line where there is one, and the mending.
    """
    skipped: Counter[str] = Counter()
    given: dict[str, Iterable[Row]] = {}
    if isinstance(settings, Docstrings):
        rows, origin = read_docstrings(settings.packages)
        return divide(
            {"train": rows},
            origin,
            skipped,
            fractions=settings.fractions,
            classes=settings.packages,
        )
    if isinstance(settings, Glue):
        return _load_glue(settings, skipped)
    columns = Columns(settings.text_field, settings.pair_field, settings.label_field)
    if isinstance(settings, LabelledFiles):
        for part in PARTS:
            path: Path | None = getattr(settings, part)
            if path is not None:
                given[part] = read_tsv(path, columns, skipped)
        origin = f"files {', '.join(str(p.name) for p in _given_paths(settings))}"
    else:
        for part in PARTS:
            split: str | None = getattr(settings, f"{part}_split")
            if split is not None:
                given[part] = read_hub(
                    settings.name,
                    split,
                    columns,
                    config=settings.config,
                    revision=settings.revision,
                    classes=settings.classes,
                )
        origin = " ".join(filter(None, ("dataset", settings.name, settings.config)))
    return divide(
        given,
        origin,
        skipped,
        fractions=settings.fractions,
        problem=settings.problem,
        classes=settings.classes,
    )


def _given_paths(settings: LabelledFiles) -> list[Path]:
    paths = (settings.train, settings.validation, settings.test)
    return [path for path in paths if path is not None]


def divide(
    given: Mapping[str, Iterable[Row]],
    origin: str,
    skipped: Counter[str],
    *,
    fractions: tuple[float, float] = (0.0, 0.0),
    problem: Problem = "classification",
    classes: Sequence[str] | None = None,
) -> Labelled:
    """Rows as examples in three parts.

    Args:
        given: rows of `train` and, where they are given, `validation` and `test`, or several test
            sets as `test NAME`.
        origin: in words, where the rows come from.
        skipped: reasons why rows were skipped, and how many; those with an empty text are added.
        fractions: shares of the training rows that become the validation and the test part, where
            these are not given.
        problem: what labels are.
        classes: names of the classes; those of the training rows, sorted, if None.

    Raises:
        CorpusError: an unknown label, one class alone, an empty part.
    """
    known = None if classes is None else set(classes)
    tests = [name for name in given if name.startswith("test")]
    validation_fraction = 0.0 if "validation" in given else fractions[0]
    test_fraction = 0.0 if tests else fractions[1]
    examples: dict[str, list[Example]] = {part: [] for part in ("train", "validation")}
    examples |= {name: [] for name in tests or ["test"]}
    # Training rows first: their labels are the classes, where these are not named.
    for name in sorted(given, key=lambda name: name != "train"):
        for row in given[name]:
            text, pair = _one_line(row.text), row.pair and _one_line(row.pair)
            if not text or pair == "":
                skipped["an empty text"] += 1
                continue
            if not row.label:
                skipped["no label"] += 1
                continue
            part = name
            if name == "train":
                part = part_of(text, validation_fraction, test_fraction)
            examples[part].append(Example(text, pair, _label(row, problem, known)))
        if name == "train" and known is None and problem == "classification":
            labels = {str(example.label) for part in examples.values() for example in part}
            classes = sorted(labels, key=_by_number)
            known = labels
            _check_classes(classes, sum(map(len, examples.values())), origin)
    _check_not_empty(examples, origin, skipped)
    notes = {"corpus": origin} | _counts(examples, skipped)
    if problem == "classification" and classes is not None:
        notes["classes"] = _named(classes)
    return Labelled(
        examples.pop("train"),
        examples.pop("validation"),
        {name.removeprefix("test").strip(): part for name, part in examples.items()},
        list(classes) if problem == "classification" and classes is not None else None,
        notes,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _label(row: Row, problem: Problem, known: set[str] | None) -> str | float:
    """The label of a row, checked."""
    if problem == "regression":
        try:
            number = float(row.label)
        except ValueError:
            number = math.nan
        # -100 is what models take for "nothing to predict here".
        if not math.isfinite(number) or number == -100:
            raise CorpusError(
                f"{row.where}: the label is {row.label!r}, expected a number (other than -100). "
                "Correct it, or set data.problem to classification."
            )
        return number
    if known is not None and row.label not in known:
        near = get_close_matches(row.label, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise CorpusError(
            f"{row.where}: the label {row.label!r} is unknown{hint}; the classes are "
            f"{_named(sorted(known, key=_by_number))}. Correct it, or name all classes in "
            "data.classes."
        )
    return row.label


def _by_number(label: str) -> tuple[float, str]:
    """Sorts "9" before "10", and numbers before words."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def _named(classes: Sequence[str]) -> str:
    """Up to a dozen classes by name.

    >>> _named(["I", "O"])
    'I, O'
    """
    more = f", ... ({len(classes):,} in all)" if len(classes) > 12 else ""
    return ", ".join(classes[:12]) + more


def _check_classes(classes: Sequence[str], count: int, origin: str) -> None:
    if len(classes) == 1:
        raise CorpusError(
            f"{origin}: all labels are {classes[0]!r}, expected at least two classes. Is the "
            "label's column the right one?"
        )
    if len(classes) > max(2, count / 2):
        raise CorpusError(
            f"{origin}: {len(classes):,} different labels among {count:,} examples ({classes[0]}, "
            f"{classes[1]}, ...): too many to learn classes from. If they are numbers, set "
            "data.problem to regression; else look whether the label's column is the right one."
        )


def _check_not_empty(
    examples: Mapping[str, Sequence[Example]], origin: str, skipped: Counter[str]
) -> None:
    for part, of_part in examples.items():
        if not of_part:
            counts = ", ".join(f"{name} {len(rows):,}" for name, rows in examples.items())
            left_out = _reasons(skipped)
            raise CorpusError(
                f"{origin}: no examples for the {part} part ({counts}"
                + (f"; skipped: {left_out}" if left_out else "")
                + "). Give more examples, a larger validation_fraction or test_fraction, or data "
                "of its own for the part."
            )


def _counts(examples: Mapping[str, Sequence[Example]], skipped: Counter[str]) -> dict[str, str]:
    """How many examples each part has, which were skipped, and which are known from training."""
    notes = {}
    trained = {(example.text, example.pair) for example in examples["train"]}
    for name, of_part in examples.items():
        words = f"{len(of_part):,} examples"
        leaked = sum((example.text, example.pair) in trained for example in of_part)
        if name != "train" and leaked:
            words += f", of which {leaked:,} also stand in the training part"
        notes[name] = words
    if skipped:
        notes["skipped"] = _reasons(skipped)
    return notes


def _reasons(skipped: Counter[str]) -> str:
    return ", ".join(f"{count:,} with {reason}" for reason, count in skipped.items() if count)


# --- files of tab-separated values ------------------------------------------------------------


def read_tsv(path: Path, columns: Columns, skipped: Counter[str]) -> Iterator[Row]:
    """Rows of a file whose first line names its columns, without quoting, as GLUE's files are.

    Args:
        path: UTF-8 text; gzip if the name ends in ``.gz``.
        columns: those to read.
        skipped: counts rows with another number of fields than there are columns.

    Raises:
        CorpusError: a file that is missing, empty, no UTF-8 or without one of the columns, or a
            tenth of its rows or more have another number of fields.
    """
    lines = read_lines(path)
    if not lines:
        raise CorpusError(f"{path}: the file is empty. Expected a line of column names, then rows.")
    there = lines[0].split("\t")
    for column in columns:
        if column is not None and column not in there:
            near = get_close_matches(column, there, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise CorpusError(
                f"{path}, line 1: there is no column {column!r}{hint}; there are "
                f"{', '.join(there)}. Name the columns in data.text_field, data.pair_field and "
                "data.label_field."
            )
    text_at, label_at = there.index(columns.text), there.index(columns.label)
    pair_at = None if columns.pair is None else there.index(columns.pair)
    rows = [line.split("\t") for line in lines[1:]]
    while rows and rows[-1] == [""]:
        del rows[-1]  # blank lines at the end are no rows
    ragged = [number for number, row in enumerate(rows) if len(row) != len(there)]
    if len(ragged) > len(rows) / 10:
        number = ragged[0]
        raise CorpusError(
            f"{path}, line {number + 2}: {len(rows[number])} fields, expected {len(there)} "
            f"({', '.join(there)}); so it is in {len(ragged):,} of {len(rows):,} rows. Fields "
            "are divided by tabs, quotation marks have no meaning, and a row is one line."
        )
    skipped["too few or too many fields"] += len(ragged)
    for number, row in enumerate(rows):
        if len(row) == len(there):
            pair = None if pair_at is None else row[pair_at]
            yield Row(f"{path}, line {number + 2}", row[text_at], pair, row[label_at].strip())


# --- Hugging Face datasets --------------------------------------------------------------------


def read_hub(
    name: str,
    split: str,
    columns: Columns,
    *,
    config: str | None = None,
    revision: str | None = None,
    classes: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Rows of one split of a dataset on the Hugging Face hub, or of a local folder.

    Args:
        name, split, config, revision: see `load_hub_split`.
        columns: those to read.
        classes: names of the classes, where labels are their numbers and the dataset has no names.

    Raises:
        CorpusError: no such dataset, configuration, split or column, or a text that is no text.
    """
    mending = "Name columns in data.text_field, data.pair_field and data.label_field."
    dataset = load_hub_split(name, split, config, revision)
    names = getattr(dataset.features.get(columns.label), "names", None) or classes or ()
    for number, record in enumerate(dataset):
        where = f"dataset {name!r}, split {split!r}, row {number}"
        text = text_field(record, columns.text, where, mending)
        pair = columns.pair and text_field(record, columns.pair, where, mending)
        if columns.label not in record:
            text_field(record, columns.label, where, mending)  # says which there are
        yield Row(where, text, pair, _class_name(record[columns.label], names))


def _class_name(label: object, names: Sequence[str]) -> str:
    """A label as text; -1, as the hub's test parts have it, is none.

    >>> [_class_name(label, ["negative", "positive"]) for label in (1, -1, None, "positive")]
    ['positive', '', '', 'positive']
    """
    if label is None:
        return ""
    if isinstance(label, int) and names and str(label) not in names:
        if label == -1:
            return ""
        if 0 <= label < len(names):
            return names[label]
    return str(label)


# --- GLUE -------------------------------------------------------------------------------------


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


def known_classes(settings: ExampleLimits) -> tuple[Problem, list[str] | None]:
    """What settings alone tell of the labels: the problem, and the classes if they are named.

    >>> known_classes(Glue(task="QNLI"))
    ('classification', ['entailment', 'not_entailment'])
    """
    if isinstance(settings, Glue):
        classes = _GLUE[settings.task].classes
        return "regression" if classes is None else "classification", classes
    if isinstance(settings, Docstrings):
        return "classification", settings.packages
    return getattr(settings, "problem", "classification"), getattr(settings, "classes", None)


def _load_glue(settings: Glue, skipped: Counter[str]) -> Labelled:
    task = _GLUE[settings.task]
    sources = {"train": ("train", "train.tsv"), **task.tests}
    given: dict[str, Iterable[Row]] = {}
    for part, (split, file) in sources.items():
        if settings.folder is None:
            given[part] = read_hub(
                settings.name,
                split,
                task.hub,
                config=task.config,
                revision=settings.revision,
                classes=task.classes,
            )
        else:
            rows = read_tsv(settings.folder / file, task.files, skipped)
            given[part] = _renamed(rows, task.file_labels)
    origin = f"GLUE, {settings.task}, "
    origin += f"dataset {settings.name}" if settings.folder is None else f"{settings.folder}"
    return divide(
        given,
        origin,
        skipped,
        fractions=settings.fractions,
        problem="regression" if task.classes is None else "classification",
        classes=task.classes,
    )


def _renamed(rows: Iterable[Row], names: Mapping[str, str]) -> Iterator[Row]:
    for row in rows:
        yield row._replace(label=names.get(row.label, row.label))


# --- docstrings -------------------------------------------------------------------------------


def read_docstrings(packages: Sequence[str]) -> tuple[list[Row], str]:
    """The first paragraphs of a package's docstrings, labelled with the package.

    One that stands in two packages is in neither. All packages give as many as the smallest has;
    which ones, a hash decides.

    Args:
        packages: names of installed packages, as they are imported.

    Returns:
        The rows, package by package, and a sentence on where they come from.

    Raises:
        CorpusError: a package that is not installed, or has no docstrings.
    """
    found = {package: docstrings(package) for package in packages}
    times = Counter(text for texts in found.values() for text in texts)
    for package, texts in found.items():
        found[package] = _shuffled(package, [text for text in texts if times[text] == 1])
    smallest = min(map(len, found.values()))
    if not smallest:
        empty = next(package for package, texts in found.items() if not texts)
        raise CorpusError(
            f"data.packages: no docstrings in the source files of {empty!r}. Name packages that "
            "are written in Python and documented."
        )
    rows = [
        Row(f"package {package}", text, None, package)
        for package, texts in found.items()
        for text in texts[:smallest]
    ]
    each = ", ".join(versions(packages))
    return rows, f"first paragraphs of docstrings, {smallest:,} each of {each}"


def _shuffled(package: str, texts: Sequence[str]) -> list[str]:
    """In the order of a hash; not of the text alone, by which it falls into its part."""
    return sorted(texts, key=lambda text: hashlib.sha256(f"{package} {text}".encode()).digest())


def docstrings(package: str) -> list[str]:
    """The first paragraphs of a package's docstrings, of 4 to 40 words, each once.

    Tests, and what they call on, are left out.

    Raises:
        CorpusError: the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CorpusError(
            f"data.packages: there is no installed package {package!r}. Install it, or name others."
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    texts: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    for file in sorted(folder.rglob("*.py")):
        if any(name.strip("_") in ("test", "tests", "testing") for name in file.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # a template, or of another version of Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                text = _one_line((ast.get_docstring(node) or "").split("\n\n")[0])
                if 4 <= len(text.split()) <= 40:
                    texts[text] = None
    return list(texts)


def versions(packages: Sequence[str]) -> Iterator[str]:
    """Each package with its version; a distribution may have another name than its package."""
    distributions = metadata.packages_distributions()
    for package in packages:
        names = distributions.get(package.partition(".")[0], [])
        yield f"{package} {metadata.version(names[0])}" if names else package
