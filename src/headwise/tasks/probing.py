"""Probing: a classifier on top of a sentence encoder tells which properties the encoder captures.

The protocol is that of Li et al. 2019, *Information Aggregation for Multi-Head Attention with
Routing-by-Agreement*, https://arxiv.org/abs/1904.03100 (section 5.1, table 1): three encoder layers
of the base Transformer, the mean of the top layer, and a perceptron are trained together on each of
the ten tasks of Conneau et al. 2018, https://arxiv.org/abs/1805.01070. The paper says no more about
the perceptron; it has one hidden layer here, as in SentEval, from which the tasks come.

Probing is classification (`tasks.classification`) with other data: SentEval's files, or examples
that `text.labelled.probes` makes from any text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from headwise.recipe.settings import Recipe
from headwise.spelling import did_you_mean
from headwise.tasks.classification import (
    Classification,
    ClassificationModel,
    ClassificationRecipe,
)
from headwise.tasks.parts import PARTS
from headwise.tasks.sources import CorpusError
from headwise.tasks.text.labelled.corpus import LabelledCorpus, make_corpus
from headwise.tasks.text.labelled.docstrings import docstrings, versions
from headwise.tasks.text.labelled.probes import (
    PAPER_BINS,
    balanced_parts,
    bigram_shift,
    sentence_length,
    usable_sentences,
    word_content,
)
from headwise.tasks.text.labelled.reading import Row, read_senteval
from headwise.tasks.text.labelled.settings import CLASSES, PACKAGES, ExampleLimits
from headwise.tasks.text.running.corpus import lines_of, load_text_corpus
from headwise.tasks.text.running.reading import split_sentences
from headwise.tasks.text.running.settings import TextSettings

# --- settings ---------------------------------------------------------------------------------


class SentEvalFile(ExampleLimits):
    """A file of SentEval's probing tasks: lines of partition, label and sentence, divided by tabs.

    The partition is tr, va or te. A line may have further fields before its sentence.
    """

    corpus: Literal["senteval"] = Field("senteval", description="Selects a file of SentEval.")
    file: Path = Field(
        description="The file, such as bigram_shift.txt; gzip if its name ends in .gz."
    )
    classes: list[str] | None = CLASSES


class DocstringTexts(BaseModel):
    """Ten thousand first paragraphs of docstrings of installed packages: real, offline."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: Literal["docstrings"] = Field("docstrings", description="Selects the built-in text.")
    packages: list[str] = Field(
        default_factory=lambda: list(PACKAGES), min_length=1, description="Names of the packages."
    )


class GeneratedProbe(ExampleLimits):
    """A probing task that is made from any text; its labels come from the text itself.

    The sentences of all parts of the text are put together and divided anew, so that all classes
    have the same size in every part.
    """

    corpus: Literal["generated"] = Field(
        "generated", description="Selects a task made from a text."
    )
    probe: Literal["SeLen", "WC", "BShift"] = Field(
        "SeLen",
        description="The property. SeLen: how many words a sentence has; WC: which of num_words "
        "words occurs in it; BShift: whether two neighbouring words are swapped.",
    )
    texts: Annotated[
        DocstringTexts | TextSettings,
        Field(discriminator="corpus"),
    ] = Field(
        default_factory=lambda: DocstringTexts(), description="Text from which the sentences come."
    )
    min_words: int = Field(
        5, ge=1, description="Number of words of the shortest sentence that is used."
    )
    max_words: int = Field(
        28, ge=1, description="Number of words of the longest sentence that is used."
    )
    num_bins: int = Field(
        6,
        ge=2,
        description="For SeLen: number of classes, whose borders make the smallest class as large "
        "as possible.",
    )
    bins: list[int] | None = Field(
        None,
        min_length=2,
        description="For SeLen: smallest number of words of each class, in place of num_bins; "
        f"those of SentEval are {list(PAPER_BINS)}.",
    )
    num_words: int = Field(
        1000,
        ge=2,
        description="For WC: number of words, which are the classes; little text needs fewer.",
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=0.5, description="Share of the sentences that becomes the validation part."
    )
    test_fraction: float = Field(
        0.1, gt=0, lt=0.5, description="Share of the sentences that becomes the test part."
    )
    seed: int = Field(
        1,
        ge=0,
        description="Seed of the choice of sentences, of their parts, and of the swapped words.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_words < self.min_words:
            raise ValueError(
                f"max_words is {self.max_words}, expected at least min_words, {self.min_words}"
            )
        if self.bins is not None and sorted(set(self.bins)) != self.bins:
            raise ValueError(f"bins is {self.bins}, expected increasing numbers, as in [5, 9, 13]")
        return self


ProbeSettings = Annotated[SentEvalFile | GeneratedProbe, Field(discriminator="corpus")]


class ProbingModel(ClassificationModel):
    """Settings of the encoder and of the perceptron on top of it; defaults are the paper's."""

    layers: int = Field(3, ge=1, description="Number of layers of the encoder.")


class ProbingRecipe(ClassificationRecipe):
    """The recipe of a probing task: data, vocabulary, model, training and scores."""

    task: Literal["probing"] = Field("probing", description="Selects probing.")  # type: ignore[assignment]
    data: ProbeSettings = Field(  # type: ignore[assignment]
        default_factory=lambda: GeneratedProbe(), description="The probing task."
    )
    model: ProbingModel = Field(
        default_factory=lambda: ProbingModel(), description="Sizes and attention of the model."
    )


# --- the task ---------------------------------------------------------------------------------


class Probing(Classification):
    """Classification of sentences by one of their properties."""

    recipe_class: ClassVar[type[Recipe]] = ProbingRecipe
    item_name = "sentences"
    loss_name = "nats per sentence"
    centre: ClassVar[Literal["mean", "median"]] = "mean"
    macs_lengths = {"encoder": 28}  # noqa: RUF012  # words of the longest sentence of the paper's tasks

    @classmethod
    def load(cls, data: Any) -> LabelledCorpus:
        if isinstance(data, SentEvalFile):
            return _load_senteval(data)
        return _generate(data)


# --- SentEval's files -------------------------------------------------------------------------


def _load_senteval(settings: SentEvalFile) -> LabelledCorpus:
    rows: dict[str, list[Row]] = {part: [] for part in PARTS}
    for part, row in read_senteval(settings.file):
        rows[part].append(row)
    if settings.classes is None:
        _check_labels(rows)
    return make_corpus(
        rows,
        f"SentEval, {settings.file}",
        Counter(),
        classes=settings.classes,
        label_hint="Check the second field of the lines, which is the label.",
    )


def _check_labels(rows: Mapping[str, Sequence[Row]]) -> None:
    """Checks labels that are to be the classes: each must also occur in a row that is scored.

    In SentEval's files every class, also each of the 1,000 of WC, has examples in all three
    partitions. A label that only training rows have is a mistake, which would become a class.
    """
    scored = {row.label for part in ("validation", "test") for row in rows[part]}
    if not rows["validation"] or not rows["test"]:
        return  # `make_corpus` raises an error for an empty part
    for row in rows["train"]:
        if row.label and row.label not in scored:
            raise CorpusError(
                f"{row.where}: the label {row.label!r} occurs only in training rows (tr), expected "
                "it in va or te too, where it could be scored: correct it, or name all classes as "
                f"data.classes{did_you_mean(row.label, scored)}"
            )


# --- generated probes -------------------------------------------------------------------------


def _generate(settings: GeneratedProbe) -> LabelledCorpus:
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
    return make_corpus(rows, origin, Counter(), classes=list(classes))


def _sentences(settings: GeneratedProbe) -> tuple[Sequence[str], str]:
    """Returns all sentences of the text, and words on where they come from."""
    texts = settings.texts
    if isinstance(texts, DocstringTexts):
        paragraphs = [text for package in texts.packages for text in docstrings(package)]
        origin = f"docstrings of {', '.join(versions(texts.packages))}"
    else:
        corpus = load_text_corpus(texts)
        paragraphs = lines_of([*corpus.train, *corpus.validation, *corpus.test])
        origin = corpus.notes["corpus"]
    return [s for paragraph in paragraphs for s in split_sentences(paragraph)], origin
