"""Classification and regression: a class or a number for a text or a pair of texts.

The model begins from drawn weights, or from the encoder of a masked language model that headwise
has trained (`model.pretrained`): then sizes, attention and vocabulary are those of that model, and
only what stands on top of the encoder is drawn.

Its pieces are in files of their own: data (`text.labelled_corpora`, `text.labelled_sources`,
`text.glue`, `text.docstrings`, `text.labelled`), encoding (`text.examples`), pretrained
encoders (`text.pretrained`) and pictures (`text.predictions`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import Self

from headwise.models.base import HeadwiseModel
from headwise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from headwise.models.plan import layer_specs
from headwise.recipe.settings import EvaluationSettings, ModelSettings, Recipe
from headwise.tasks.outcome import Outcome, Picture, Sample, Score, spread
from headwise.tasks.task import Advance, Items
from headwise.tasks.text.encoded import pad, token_mask
from headwise.tasks.text.examples import ClassificationItem, Examples
from headwise.tasks.text.labelled import Example, Labelled
from headwise.tasks.text.labelled_corpora import (
    Docstrings,
    ExampleSettings,
    known_classes,
    load_labelled,
)
from headwise.tasks.text.predictions import draw_confusions, draw_predictions
from headwise.tasks.text.pretrained import load_encoder, pretrained_config, pretrained_tokenizer
from headwise.tasks.text.text_task import TextTask
from headwise.tasks.text.tokenization import TextTokenizer, TextTokenizerSettings

_SAMPLES = 12
_MOST_CLASSES = 30  # that a picture shows


# --- settings ---------------------------------------------------------------------------------


class ClassificationModel(ModelSettings):
    """Sizes of the encoder, and what stands on top of it."""

    layers: int = Field(6, ge=1, description="layers of the encoder")
    pooling: Literal["mean", "first"] = Field(
        "mean",
        description="what stands for a text: the mean of the top layer over its tokens, or the "
        "first of them, which is <bos>",
    )
    hidden_dim: int | None = Field(
        None, ge=1, description="width of the perceptron's hidden layer; default: embed_dim"
    )
    activation: Literal["tanh", "relu", "sigmoid"] = Field(
        "tanh", description="of the perceptron's hidden layer"
    )
    pretrained: Path | None = Field(
        None,
        description="folder of a finished run of masked language modelling; sizes, attention and "
        "vocabulary are its, and its encoder's weights are what training begins from",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_sizes(cls, given: Any) -> Any:
        """Sizes that are not given are those of the pretrained model; others must agree."""
        # A folder that is not there is an error when its weights are needed, and not before: the
        # recipe of a finished run can be read without it.
        if not isinstance(given, Mapping) or not given.get("pretrained"):
            return given
        config = pretrained_config(Path(given["pretrained"]))
        if config is None:
            return given
        for key in ("embed_dim", "num_heads", "ffn_dim", "layers", "norm"):
            if key in given and given[key] != getattr(config, key):
                raise ValueError(_conflict(key, given[key], getattr(config, key), given))
        taken = {key: getattr(config, key) for key in _TAKEN} | dict(given)
        depths = config.depths()
        if layer_specs(taken["attention"], depths) != config.systems():
            raise ValueError(_conflict("attention", taken["attention"], config.attention, given))
        return taken

    def config(self, **encoding: Any) -> SequenceClassifierConfig:
        return SequenceClassifierConfig(**self.model_dump(exclude={"pretrained"}), **encoding)


_TAKEN = ("embed_dim", "num_heads", "ffn_dim", "layers", "norm", "attention")


def _conflict(key: str, given: Any, there: Any, settings: Mapping[str, Any]) -> str:
    return (
        f"{key} is {given!r}, but the model in {settings['pretrained']} has {there!r}: leave "
        f"model.{key} out, or give that"
    )


class ClassificationEvaluation(EvaluationSettings):
    """How a classifier is evaluated."""

    batch_size: int = Field(64, ge=1, description="examples that are classified together")


class ClassificationRecipe(Recipe):
    """What to classify, with what."""

    task: Literal["classification"] = Field("classification", description="what is learned")
    data: ExampleSettings = Field(
        default_factory=lambda: Docstrings(), description="labelled texts"
    )
    tokenizer: TextTokenizerSettings | None = Field(
        None,
        description="the vocabulary; default: that of model.pretrained, or byte-level BPE with "
        "4000 subwords",
    )
    model: ClassificationModel = Field(
        default_factory=lambda: ClassificationModel(), description="sizes and attention"
    )
    evaluation: ClassificationEvaluation = Field(
        default_factory=lambda: ClassificationEvaluation(), description="batches of the evaluation"
    )

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        longest, budget = self.data.max_length, self.training.batch_tokens
        if longest > budget:
            raise ValueError(
                f"data.max_length is {longest}, but training.batch_tokens is {budget}: a batch "
                "must hold an example at least"
            )
        return self

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        if self.model.pretrained is not None and self.tokenizer is not None:
            raise ValueError(
                f"tokenizer is given, but the vocabulary is that of model.pretrained, "
                f"{self.model.pretrained}: leave one of them out"
            )
        return self


# --- the task ---------------------------------------------------------------------------------


class Classification(TextTask):
    """Labelled texts, encoded.

    Args:
        labelled: texts in three parts.
        tokenizer: encodes them.
        max_length: of an example, in tokens.
    """

    recipe_class: ClassVar[type[Recipe]] = ClassificationRecipe
    model_class = SequenceClassifier
    loss_name = "nats per example"
    item_name = "examples"
    centre: ClassVar[Literal["mean", "median"]] = "median"  # as TIM's table 2
    macs_lengths = {"encoder": 128}  # noqa: RUF012

    train: Examples
    validation: Examples
    test: Examples

    def __init__(self, labelled: Labelled, tokenizer: TextTokenizer, max_length: int) -> None:
        self.labelled = labelled
        self.tokenizer = tokenizer
        self.classes = labelled.classes
        if self.classes is None:
            # Of this task alone; the class's is that of a classification.
            self.loss_name = "squared error per example"  # type: ignore[misc]
        test = [example for examples in labelled.test.values() for example in examples]
        self.train, self.validation, self.test = (
            Examples(examples, tokenizer, self.classes, max_length)
            for examples in (labelled.train, labelled.validation, test)
        )
        self.notes = {**labelled.notes, "vocabulary": self.vocabulary()}
        cut = self.train.cut + self.validation.cut + self.test.cut
        if cut:
            self.notes["cut"] = f"{cut:,} examples of more than {max_length} {self.unit}"

    @classmethod
    def load(cls, data: Any) -> Labelled:
        """The examples that a recipe's `data` asks for."""
        return load_labelled(data)

    @classmethod
    def prepare(cls, recipe: Any, folder: Path | None = None) -> Self:
        labelled = cls.load(recipe.data)
        tokenizer = cls.kept_tokenizer(folder)
        if tokenizer is None and recipe.model.pretrained is not None:
            tokenizer = pretrained_tokenizer(recipe.model.pretrained)
        if tokenizer is None:
            texts = [text for example in labelled.train for text in example[:2] if text]
            settings = recipe.tokenizer or TextTokenizerSettings()
            tokenizer = TextTokenizer.train(texts, settings)
        return cls(labelled, tokenizer, recipe.data.max_length)

    def digest(self) -> str:
        return self.labelled.digest()

    @classmethod
    def nominal_config(cls, recipe: Any) -> SequenceClassifierConfig:
        """With a vocabulary as large as it may be, and two classes where settings do not say."""
        problem, classes = known_classes(recipe.data)
        pretrained = recipe.model.pretrained and pretrained_config(recipe.model.pretrained)
        tokenizer = recipe.tokenizer or TextTokenizerSettings()
        return recipe.model.config(
            vocab_size=pretrained.vocab_size if pretrained else tokenizer.vocab_size,
            problem=problem,
            classes=classes,
        )

    def model_config(self, settings: ClassificationModel) -> SequenceClassifierConfig:
        return settings.config(
            classes=self.classes,
            problem="regression" if self.classes is None else "classification",
            **self.token_ids(),
        )

    def build_model(self, settings: ModelSettings) -> HeadwiseModel:
        assert isinstance(settings, ClassificationModel)
        model = SequenceClassifier(self.model_config(settings))
        if settings.pretrained is not None:
            load_encoder(model.encoder, settings.pretrained, self.tokenizer)
        return model

    def collate(self, items: list[ClassificationItem]) -> dict[str, Tensor]:
        """A batch of examples, padded on the right to the longest of them."""
        rows = [item["input_ids"] for item in items]
        kind = torch.float32 if self.classes is None else torch.int64
        return {
            "input_ids": pad(rows, self.tokenizer.pad_token_id),
            "attention_mask": token_mask(rows),
            "labels": torch.tensor([item["label"] for item in items]).to(kind),
        }

    def measure(self, model: HeadwiseModel) -> dict[str, float]:
        """The first score on the validation part."""
        items = self._items(self.validation, self._predict(model, self.validation))
        name, statistic = self._statistics()[0]
        return {f"validation {name}": statistic(np.array(items))}

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: ClassificationEvaluation,
        advance: Advance,
    ) -> Outcome:
        """Accuracy, or Pearson's and Spearman's correlation, of each test set."""
        assert isinstance(part, Examples)
        predicted = self._predict(model, part, evaluation.batch_size, advance)
        items = self._items(part, predicted)
        sets = {"": len(part)}
        if part is self.test:
            sets = {name: len(examples) for name, examples in self.labelled.test.items()}
        scores, start = [], 0
        for name, size in sets.items():
            of_set = items[start : start + size]
            start += size
            for score, statistic in self._statistics():
                label = f"{score}, {name}" if name else score
                scores.append(Score.of(label, of_set, statistic, note=self._note(of_set)))
        outputs = [self._in_words(number) for number in predicted]
        return Outcome(
            scores=scores,
            items=items[: next(iter(sets.values()))],
            outputs=outputs,
            samples=_samples(part.examples, outputs),
            pictures=self._pictures(items),
        )

    def statistic(self, items: np.ndarray) -> float:
        return self._statistics()[0][1](items)

    def _statistics(self) -> list[tuple[str, Any]]:
        """Names of the scores, and how each is counted from rows of label and prediction."""
        if self.classes is None:
            return [("Pearson", pearson), ("Spearman", spearman)]
        return [("accuracy", accuracy)]

    def _predict(
        self,
        model: HeadwiseModel,
        part: Examples,
        batch_size: int = 64,
        advance: Advance = lambda count: None,
    ) -> np.ndarray:
        """For each example the number of its likeliest class, or the number itself."""
        predicted = np.zeros(len(part))
        order = np.argsort(part.true_lengths, kind="stable")  # little padding in a batch
        with torch.no_grad():
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                batch = self.collate([part[int(index)] for index in chosen])
                logits = model(
                    input_ids=batch["input_ids"].to(model.device),
                    attention_mask=batch["attention_mask"].to(model.device),
                ).logits
                found = logits[:, 0] if self.classes is None else logits.argmax(-1)
                predicted[chosen] = found.double().cpu().numpy()
                advance(len(chosen))
        return predicted

    def _items(self, part: Examples, predicted: np.ndarray) -> list[list[float]]:
        """Rows of label and prediction."""
        return [
            [label, float(number)] for label, number in zip(part.labels, predicted, strict=True)
        ]

    def _in_words(self, number: float) -> str:
        return f"{number:.3f}" if self.classes is None else self.classes[int(number)]

    def _note(self, items: Sequence[Sequence[float]]) -> str:
        if self.classes is None:
            return "× 100"
        most = np.bincount(np.array(items)[:, 0].astype(int)).max()
        return f"in percent; the most frequent class alone: {100 * most / len(items):.1f}"

    def _pictures(self, items: Sequence[Sequence[float]]) -> list[Picture]:
        rows = np.array(items)
        if self.classes is None:
            return [draw_predictions(rows)]
        return [draw_confusions(rows, self.classes)] if len(self.classes) <= _MOST_CLASSES else []


# --- scores -----------------------------------------------------------------------------------


def accuracy(rows: np.ndarray) -> float:
    """Percentage of rows whose prediction is the label.

    >>> accuracy(np.array([[0, 0], [1, 1], [2, 1], [1, 1]]))
    75.0
    """
    return float(100 * (rows[:, 0] == rows[:, 1]).mean())


def pearson(rows: np.ndarray) -> float:
    """Pearson's correlation of labels and predictions × 100; 0 where one of them is constant.

    >>> round(pearson(np.array([[0.0, 1.0], [1.0, 1.5], [2.0, 2.0]])), 6)
    100.0
    """
    # Spread within rounding is none: the correlation would be that of the rounding.
    if any(np.ptp(column) <= 1e-9 * np.abs(column).max() for column in rows.T):
        return 0.0
    return float(100 * np.corrcoef(rows.T)[0, 1])


def spearman(rows: np.ndarray) -> float:
    """Spearman's: that of their ranks, equal values at the mean of their ranks.

    >>> spearman(np.array([[0.0, 1.0], [1.0, 10.0], [2.0, 100.0]]))
    100.0
    """
    from scipy.stats import rankdata  # imported here: it takes a second

    return pearson(np.stack([rankdata(column) for column in rows.T], axis=1))


# --- things to look at ------------------------------------------------------------------------


def _samples(examples: Sequence[Example], outputs: Sequence[str]) -> list[Sample]:
    """A dozen examples, spread over the part."""
    samples = []
    for index in spread(range(len(examples)), _SAMPLES):
        example = examples[index]
        given = {"Text": example.text}
        if example.pair is not None:
            given["Second text"] = example.pair
        samples.append(Sample(given={**given, "Label": str(example.label)}, made=outputs[index]))
    return samples
