"""Probing: what a sentence encoder knows of its sentence, told by a classifier on top of it.

As Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*,
https://arxiv.org/abs/1904.03100, compare systems (section 5.1, table 1): three encoder layers of
the base Transformer, the mean of the top layer, and a perceptron, all trained together on each of
the ten tasks of Conneau et al. 2018, https://arxiv.org/abs/1805.01070. The paper gives no more of
the perceptron; one hidden layer is what SentEval, where the tasks come from, has.

It is classification (`tasks.classification`) with other data: SentEval's files, or examples that
`text.probes` makes of any text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from headwise.recipe.settings import Recipe
from headwise.tasks.classification import (
    Classification,
    ClassificationModel,
    ClassificationRecipe,
)
from headwise.tasks.sources import CorpusError, read_lines, split_sentences
from headwise.tasks.text.docstrings import PACKAGES, docstrings, versions
from headwise.tasks.text.labelled import Labelled, Row, divide
from headwise.tasks.text.labelled_corpora import ExampleLimits
from headwise.tasks.text.probes import (
    PAPER_BINS,
    balanced_parts,
    bigram_shift,
    sentence_length,
    usable_sentences,
    word_content,
)
from headwise.tasks.text.texts import TextSettings, lines_of, load_texts

# --- settings ---------------------------------------------------------------------------------


class SentEvalFile(ExampleLimits):
    """A file of SentEval's probing tasks: partition, label and sentence, divided by tabs.

    The partition is tr, va or te; a line may have further fields before its sentence.
    """

    corpus: Literal["senteval"] = Field("senteval", description="a file of SentEval")
    file: Path = Field(description="the file, such as bigram_shift.txt; gzip if it ends in .gz")
    classes: list[str] | None = Field(
        None,
        description="the classes, in the order of the model's outputs; default: the labels of the "
        "training data, sorted",
    )


class DocstringTexts(BaseModel):
    """The first paragraphs of docstrings of installed packages: real, offline, ten thousand."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: Literal["docstrings"] = Field("docstrings", description="the built-in text")
    packages: list[str] = Field(
        default_factory=lambda: list(PACKAGES), min_length=1, description="the packages"
    )


class GeneratedProbe(ExampleLimits):
    """A probing task whose labels come from the text itself, made from any text.

    Sentences of all parts of the text are taken together and divided anew, so that classes are of
    one size in every part.
    """

    corpus: Literal["generated"] = Field("generated", description="made from a text")
    probe: Literal["SeLen", "WC", "BShift"] = Field(
        "SeLen",
        description="how many words a sentence has, which of num_words words stands in it, or "
        "whether two neighbouring words have changed places",
    )
    texts: Annotated[
        DocstringTexts | TextSettings,
        Field(discriminator="corpus"),
    ] = Field(default_factory=lambda: DocstringTexts(), description="where sentences come from")
    min_words: int = Field(5, ge=1, description="words of the shortest sentence that is used")
    max_words: int = Field(28, ge=1, description="words of the longest sentence that is used")
    num_bins: int = Field(
        6, ge=2, description="for SeLen: classes, with borders that make the smallest large"
    )
    bins: list[int] | None = Field(
        None,
        min_length=2,
        description="for SeLen: the fewest words of each class, in place of num_bins; those of "
        f"SentEval are {list(PAPER_BINS)}",
    )
    num_words: int = Field(
        1000, ge=2, description="for WC: words, which are the classes; little text needs fewer"
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=0.5, description="share of the sentences that becomes the validation part"
    )
    test_fraction: float = Field(
        0.1, gt=0, lt=0.5, description="share of the sentences that becomes the test part"
    )
    seed: int = Field(
        1, ge=0, description="of the choice of sentences, their parts and what changes places"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_words < self.min_words:
            raise ValueError(
                f"max_words is {self.max_words}, expected at least min_words, {self.min_words}"
            )
        if self.bins is not None and sorted(set(self.bins)) != self.bins:
            raise ValueError(f"bins is {self.bins}, expected numbers that grow, as [5, 9, 13]")
        return self


ProbeSettings = Annotated[SentEvalFile | GeneratedProbe, Field(discriminator="corpus")]


class ProbingModel(ClassificationModel):
    """Sizes of the encoder, and what stands on top of it; defaults are those of the paper."""

    layers: int = Field(3, ge=1, description="layers of the encoder")


class ProbingRecipe(ClassificationRecipe):
    """Which property to probe for, with what."""

    task: Literal["probing"] = Field("probing", description="what is learned")  # type: ignore[assignment]
    data: ProbeSettings = Field(  # type: ignore[assignment]
        default_factory=lambda: GeneratedProbe(), description="the probing task"
    )
    model: ProbingModel = Field(
        default_factory=lambda: ProbingModel(), description="sizes and attention"
    )


# --- the task ---------------------------------------------------------------------------------


class Probing(Classification):
    """Sentences labelled with a property of theirs."""

    recipe_class: ClassVar[type[Recipe]] = ProbingRecipe
    item_name = "sentences"
    loss_name = "nats per sentence"
    centre: ClassVar[Literal["mean", "median"]] = "mean"
    macs_lengths = {"encoder": 28}  # noqa: RUF012  # the longest sentence of the paper's tasks

    @classmethod
    def load(cls, data: Any) -> Labelled:
        if isinstance(data, SentEvalFile):
            return _load_senteval(data)
        return _generate(data)


# --- SentEval's files -------------------------------------------------------------------------

_PARTITIONS = {"tr": "train", "va": "validation", "te": "test"}


def _load_senteval(settings: SentEvalFile) -> Labelled:
    rows: dict[str, list[Row]] = {part: [] for part in _PARTITIONS.values()}
    for part, row in read_senteval(settings.file):
        rows[part].append(row)
    if settings.classes is None:
        _check_labels(rows)
    return divide(
        rows,
        f"SentEval, {settings.file}",
        Counter(),
        classes=settings.classes,
        label_hint="The label is the second field of a line.",
    )


def _check_labels(rows: Mapping[str, Sequence[Row]]) -> None:
    """Labels that name the classes themselves: each has to stand in a row that is scored as well.

    In SentEval's files every class, the 1,000 of WC too, has its share of all three partitions. A
    label of training rows alone is a slip that would become a class nobody asked for.
    """
    scored = {row.label for part in ("validation", "test") for row in rows[part]}
    if not rows["validation"] or not rows["test"]:
        return  # an error in itself
    for row in rows["train"]:
        if row.label and row.label not in scored:
            near = get_close_matches(row.label, scored, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise CorpusError(
                f"{row.where}: the label {row.label!r}{hint} stands in training rows (tr) alone, "
                "expected some in va or te, where it could be scored. Correct it, or name all "
                "classes in data.classes."
            )


def read_senteval(path: Path) -> Iterator[tuple[str, Row]]:
    """The part and the row of each line of a probing file.

    Args:
        path: UTF-8 text; gzip if the name ends in ``.gz``. The first field of a line is the
            partition, the second the label, the last the sentence.

    Raises:
        CorpusError: a file that cannot be read or is empty, a line with fewer than three fields,
            an unknown partition.
    """
    lines = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise CorpusError(
            f"{path}: the file is empty. Expected lines of partition, label, sentence."
        )
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        fields = line.split("\t")
        if len(fields) < 3:
            raise CorpusError(
                f"{where}: {len(fields)} of the fields partition, label and sentence, divided by "
                f"tabs: {line[:60]!r}. Expected all three, as in 'tr\\tO\\tIt is a sentence .'"
            )
        partition, label, sentence = fields[0], fields[1].strip(), fields[-1]
        if partition not in _PARTITIONS:
            raise CorpusError(
                f"{where}: the partition {partition!r} is unknown, expected one of "
                f"{', '.join(_PARTITIONS)}"
            )
        yield _PARTITIONS[partition], Row(where, sentence, None, label)


# --- generated probes -------------------------------------------------------------------------


def _generate(settings: GeneratedProbe) -> Labelled:
    found, origin = _sentences(settings)
    sentences = usable_sentences(found, settings.min_words, settings.max_words)
    if settings.probe == "SeLen":
        classes = sentence_length(sentences, settings.num_bins, settings.bins)
    elif settings.probe == "WC":
        classes = word_content(sentences, settings.num_words)
    else:
        classes = bigram_shift(sentences, settings.seed)
    parts = balanced_parts(
        classes, settings.validation_fraction, settings.test_fraction, settings.seed
    )
    rows = {
        part: [Row(part, sentence, None, label) for sentence, label in of_part]
        for part, of_part in parts.items()
    }
    used = sum(map(len, rows.values()))
    origin = (
        f"{settings.probe}, made from {origin}: {used:,} of {len(sentences):,} sentences with "
        f"{settings.min_words} to {settings.max_words} words, as many in each class"
    )
    return divide(rows, origin, Counter(), classes=list(classes))


def _sentences(settings: GeneratedProbe) -> tuple[Sequence[str], str]:
    """All sentences of the text, and words on where they come from."""
    texts = settings.texts
    if isinstance(texts, DocstringTexts):
        paragraphs = [text for package in texts.packages for text in docstrings(package)]
        origin = f"docstrings of {', '.join(versions(texts.packages))}"
    else:
        loaded = load_texts(texts)
        paragraphs = lines_of([*loaded.train, *loaded.validation, *loaded.test])
        origin = next(iter(loaded.notes.values()))  # the first says where the text comes from
    return [s for paragraph in paragraphs for s in split_sentences(paragraph)], origin
