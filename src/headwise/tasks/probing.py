"""Probing: a classifier on top of a sentence encoder tells which properties the encoder captures.

The protocol is that of Li et al. 2019, *Information Aggregation for Multi-Head Attention with
Routing-by-Agreement*, https://arxiv.org/abs/1904.03100 (section 5.1, table 1): three encoder layers
of the base Transformer, the mean of the top layer, and a perceptron are trained together on each of
the ten tasks of Conneau et al. 2018, https://arxiv.org/abs/1805.01070. The paper says no more about
the perceptron; it has one hidden layer here, as in SentEval, from which the tasks come.

Probing is classification (`tasks.classification`) with other data: SentEval's files, or examples
that are made from any text.
"""

from typing import ClassVar, Literal

from pydantic import Field

from headwise.data.labelled.probing import load_probing_corpus
from headwise.data.labelled.settings import GeneratedProbe, ProbingSettings
from headwise.recipes.settings import Recipe
from headwise.tasks.classification import (
    Classification,
    ClassificationModel,
    ClassificationRecipe,
)


class ProbingModel(ClassificationModel):
    """Settings of the encoder and of the perceptron on top of it; defaults are the paper's."""

    layers: int = Field(3, ge=1, description="Number of layers of the encoder.")


class ProbingRecipe(ClassificationRecipe):
    """The recipe of a probing task: data, vocabulary, model, training and scores."""

    task: Literal["probing"] = Field("probing", description="Selects probing.")  # type: ignore[assignment]
    data: ProbingSettings = Field(  # type: ignore[assignment]
        default_factory=lambda: GeneratedProbe()
    )
    """The probing task."""
    model: ProbingModel = Field(default_factory=lambda: ProbingModel())
    """Sizes and attention of the model."""


class Probing(Classification):
    """Classification of sentences by one of their properties."""

    recipe_class: ClassVar[type[Recipe]] = ProbingRecipe
    load = staticmethod(load_probing_corpus)
    item_name = "sentences"
    loss_name = "nats per sentence"
    centre: ClassVar[Literal["mean", "median"]] = "mean"
    macs_lengths = {"encoder": 28}  # noqa: RUF012
    macs_lengths_from = "the longest sentence of Conneau et al. 2018, in words"
