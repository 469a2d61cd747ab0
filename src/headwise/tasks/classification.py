"""Classification and regression: a class or a number for a text or a pair of texts.

The model starts from random weights, or from the encoder of a masked language model that headwise
has trained (`model.pretrained`). In the second case sizes, attention and vocabulary are those of
that model, and only the layers on top of the encoder have random weights.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from headwise.data.labelled.corpus import (
    Example,
    LabelledCorpus,
    has_pairs,
    known_classes,
    load_labelled_corpus,
    one_line,
)
from headwise.data.labelled.dataset import ClassificationItem, Examples, collate_examples
from headwise.data.labelled.settings import Docstrings, LabelledSettings
from headwise.data.tokenizers.for_models import classifier_tokenizer
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer
from headwise.messages import shown
from headwise.models.config import MaskedLMConfig, SequenceClassifierConfig
from headwise.models.for_tasks import MaskedLM, SequenceClassifier
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.pretrained import pretrained_config, read_pretrained, take_weights
from headwise.recipes.settings import EvaluationSettings, Recipe, TokenModelSettings
from headwise.tasks.drawing import draw_confusions, draw_predictions
from headwise.tasks.metrics import accuracy, pearson, spearman
from headwise.tasks.outcome import Outcome, Picture, Sample, Score, spread
from headwise.tasks.positions import Positions
from headwise.tasks.significance import Statistic, of_rows, score_of
from headwise.tasks.task import ONE_EACH, PRINTED, Advance, Items, Wish
from headwise.tasks.text_task import StreamedRecipe, TextTask, streamed
from headwise.training.processes import divided

_SAMPLES = 12  # examples that a report shows
_STATISTICS = {
    name: of_rows(score)
    for name, score in (("accuracy", accuracy), ("Pearson", pearson), ("Spearman", spearman))
}
_MOST_CLASSES = 30  # largest number of classes of a confusion matrix


# --- settings ---------------------------------------------------------------------------------


class ClassificationModel(TokenModelSettings):
    """Settings of the encoder and of the perceptron on top of it."""

    config_class = SequenceClassifierConfig
    starts_from = MaskedLMConfig

    layers: int = Field(6, ge=1, description="Number of layers of the encoder.")
    pooling: Literal["mean", "first"] = "mean"
    """Vector that represents a text. mean: mean of the top layer over the tokens; first: the output
    of the first token, which is <bos>."""
    hidden_dim: int | None = Field(None, ge=1)
    """Width of the hidden layer of the perceptron. Default: embed_dim."""
    activation: Literal["tanh", "relu", "sigmoid"] = "tanh"
    """Activation of the hidden layer of the perceptron."""


class ClassificationEvaluation(EvaluationSettings):
    """Settings of the evaluation."""

    batch_size: int = Field(64, ge=1, le=1_000_000, description="Number of examples of a batch.")


class ClassificationRecipe(StreamedRecipe):
    """The recipe of a classification: data, vocabulary, model, training and scores."""

    task: Literal["classification"] = "classification"
    """Selects classification and regression."""
    data: LabelledSettings = Field(default_factory=lambda: Docstrings())
    """The labelled texts."""
    tokenizer: TextTokenizerSettings | None = None
    """The vocabulary. Default: that of model.pretrained, or byte-level BPE with 4000 subwords."""
    model: ClassificationModel = Field(default_factory=lambda: ClassificationModel())
    """Sizes and attention of the model."""
    evaluation: ClassificationEvaluation = Field(default_factory=lambda: ClassificationEvaluation())
    """Settings of the evaluation."""

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        longest, budget = self.data.max_length, self.training.batch_tokens
        if longest > budget:
            raise ValueError(
                f"data.max_length is {longest}, expected at most training.batch_tokens, {budget}: "
                "a batch holds at least one example"
            )
        return self

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        if self.model.pretrained is not None and self.tokenizer is not None:
            raise ValueError(
                f"tokenizer is given and model.pretrained is {self.model.pretrained}, expected "
                f"only one of them: the vocabulary is that of the pretrained model; leave one out"
            )
        return self


# --- the task ---------------------------------------------------------------------------------


class Classification(TextTask):
    """The task to find the class or the number of a text, which is cut to `max_length` tokens."""

    recipe_class: ClassVar[type[Recipe]] = ClassificationRecipe
    load: ClassVar[Callable[..., LabelledCorpus]] = staticmethod(load_labelled_corpus)
    model_class = SequenceClassifier
    loss_name = "nats per example"
    loss_has_perplexity = False
    item_name = "examples"
    pipeline = "text-classification"
    centre: ClassVar[Literal["mean", "median"]] = "median"  # as in Lamb et al. 2021, table 2
    macs_lengths = {"encoder": 128}  # noqa: RUF012
    macs_lengths_from: ClassVar[str] = "to which BERT cuts the examples of GLUE"

    train: Examples
    validation: Examples
    test: Examples

    def __init__(self, corpus: LabelledCorpus, tokenizer: TextTokenizer, max_length: int) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.classes = corpus.classes
        self.max_length = max_length
        if self.classes is None:
            # Only for this object; the class has the name for a classification.
            self.loss_name = "squared error per example"  # type: ignore[misc]
        tests = list(corpus.test.values())
        test = tests[0] if len(tests) == 1 else list(chain.from_iterable(tests))
        make = partial(Examples, tokenizer=tokenizer, classes=self.classes, max_length=max_length)
        self.train = streamed(corpus.train, make)
        self.validation, self.test = make(corpus.validation), make(test)
        self.tests = {name: make(examples) for name, examples in corpus.tests.items()}
        self.notes = {**corpus.notes, "vocabulary": self.vocabulary()}
        cut = self.validation.cut + self.test.cut + (0 if self.is_streamed else self.train.cut)
        if cut:
            which = "held-out examples" if self.is_streamed else "examples"
            self.notes["cut"] = f"{cut:,} {which} of more than {max_length} {self.unit}"

    @staticmethod
    def texts_of(corpus: LabelledCorpus) -> Iterable[str]:
        return (text for example in corpus.train for text in example[:2] if text)

    @staticmethod
    def tokenizer_settings(recipe: Any) -> TextTokenizerSettings:
        return recipe.tokenizer or TextTokenizerSettings()

    @classmethod
    def from_corpus(cls, corpus: LabelledCorpus, tokenizer: TextTokenizer, recipe: Any) -> Self:
        return cls(corpus, tokenizer, recipe.data.max_length)

    def save_for_tools(self, folder: Path, recipe: ClassificationRecipe) -> None:
        tokenizer = classifier_tokenizer(self.tokenizer.tokenizer, recipe.data.max_length)
        tokenizer.save_pretrained(folder)

    @classmethod
    def nominal_config(cls, recipe: Any) -> SequenceClassifierConfig:
        """Returns the model's configuration without reading data, to count its cost.

        The vocabulary has the largest size that the settings allow. There are two classes if the
        settings do not name them.
        """
        problem, classes = known_classes(recipe.data)
        run = recipe.pretrained_run()
        pretrained = run and pretrained_config(run, MaskedLMConfig)
        if isinstance(pretrained, MaskedLMConfig):
            vocab_size = pretrained.vocab_size
        else:
            vocab_size = cls.nominal_vocab_size(cls.tokenizer_settings(recipe))
        return recipe.model.config(
            vocab_size=vocab_size,
            problem=problem,
            classes=classes,
        )

    @classmethod
    def compare_notes(cls, recipes: Mapping[str, Any]) -> dict[str, str]:
        """Warns if some encoders are pretrained and others are not."""
        trained = [name for name, recipe in recipes.items() if recipe.model.pretrained is not None]
        untrained = [name for name in recipes if name not in trained]
        if not trained or not untrained:
            return {}
        text = (
            f"{', '.join(trained)} start from a pretrained encoder and {', '.join(untrained)} from "
            f"random weights, so that differences say little of the systems; set model.pretrained "
            f"for all of them or for none"
        )
        return {"warning": text}

    def model_config(self, settings: ClassificationModel) -> SequenceClassifierConfig:
        return settings.config(
            classes=self.classes,
            problem="regression" if self.classes is None else "classification",
            **self.token_ids(),
        )

    def start_from(self, model: HeadwiseModel, run: Path) -> None:
        """Gives the encoder the weights of that of a masked language model."""
        self.check_encoding(run)
        assert isinstance(model, SequenceClassifier)
        pretrained = read_pretrained(MaskedLM, run, model.config)
        take_weights(model.encoder, pretrained.encoder, run)

    def longest_input(self) -> int:
        return self.max_length

    def collate(self, items: list[ClassificationItem]) -> dict[str, Tensor]:
        label_dtype = torch.float32 if self.classes is None else torch.int64
        return collate_examples(items, self.tokenizer.pad_token_id, label_dtype)

    def positions(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        label = {"class": (batch["labels"], list(self.classes))} if self.classes else None
        return {"encoder": self.tokens(batch["input_ids"], label)}

    def measure(self, model: HeadwiseModel) -> dict[str, float]:
        """Computes the first score on the validation part."""
        predicted = self._predict(model, self.validation)
        items = np.column_stack([self.validation.labels, predicted])
        name, statistic = self._statistics()[0]
        return {f"validation {name}": score_of(items, statistic)}

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: ClassificationEvaluation,
        advance: Advance,
    ) -> Outcome:
        """Computes accuracy, or Pearson's and Spearman's correlation, on each test set."""
        assert isinstance(part, Examples)
        predicted = self._predict(model, part, evaluation.batch_size, advance)
        items = np.column_stack([part.labels, predicted])
        sets = {"": len(part)}
        if part is self.test:
            sets = {name: len(examples) for name, examples in self.corpus.test.items()}
        scored, start = [], 0
        for name, size in sets.items():
            of_set = items[start : start + size]
            start += size
            for score, statistic in self._statistics():
                label = f"{score}, {name}" if name else score
                found = Score.of(label, of_set, statistic, note=self._note(of_set))
                scored.append((found, of_set))
        outputs = [self._in_words(number) for number in predicted]
        return Outcome.of(
            scored,
            outputs=outputs,
            samples=_samples(part.examples, outputs, self.tokenizer.join),
            pictures=self._pictures(items),
        )

    @classmethod
    def statistic(cls, name: str, evaluation: ClassificationEvaluation) -> Statistic:
        return _STATISTICS[name.partition(", ")[0]]

    @classmethod
    def predict(cls, run: Path, recipe: Any, model: HeadwiseModel, wish: Wish) -> None:
        """Prints the class of each line and its probability, or the number that is predicted.

        A tab divides the texts of a pair, if the run was trained on pairs.
        """
        wish.refuse(recipe.task, number=ONE_EACH, output=PRINTED)
        own = TextTokenizer.load(run / TOKENIZER).tokenizer
        tokenizer = classifier_tokenizer(own, recipe.data.max_length)
        lines = wish.lines()
        pairs = has_pairs(recipe.data)
        wrong = [line for line in lines if line.count("\t") != pairs]
        if wrong:
            expected = (
                "two texts with one tab between them: the run was trained on pairs of texts; give "
                "both texts and no other columns"
                if pairs
                else "one text without a tab: the run was not trained on pairs of texts; leave out "
                "the other columns"
            )
            raise ValueError(f"INPUT has the line {shown(wrong[0])}, expected {expected}")
        for line in lines:
            texts = map(one_line, line.split("\t", 1))
            batch = tokenizer(*texts, truncation=True, return_tensors="pt")
            with torch.no_grad():
                logits = model(**batch.to(model.device)).logits[0]
            if model.config.problem_type == "regression":
                wish.echo(f"{logits.item():.3f}", value=logits.item())
                continue
            best = int(logits.argmax())
            label, probability = model.config.id2label[best], float(logits.softmax(-1)[best])
            wish.echo(f"{label}\t{probability:.4f}", label=label, probability=probability)

    def _statistics(self) -> list[tuple[str, Statistic]]:
        """Names of the scores, and what computes each from rows of label and prediction."""
        names = ("Pearson", "Spearman") if self.classes is None else ("accuracy",)
        return [(name, _STATISTICS[name]) for name in names]

    def _predict(
        self,
        model: HeadwiseModel,
        part: Examples,
        batch_size: int = 64,
        advance: Advance = lambda count: None,
    ) -> np.ndarray:
        """Returns the number of each example's most probable class, or its predicted number."""
        order = np.argsort(part.true_lengths, kind="stable")  # similar lengths need little padding
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

        def predict(chosen: np.ndarray) -> np.ndarray:
            batch = self.collate([part[int(index)] for index in chosen])
            with torch.no_grad():
                logits = model(
                    input_ids=batch["input_ids"].to(model.device),
                    attention_mask=batch["attention_mask"].to(model.device),
                ).logits
            found = logits[:, 0] if self.classes is None else logits.argmax(-1)
            return found.double().cpu().numpy()

        predicted = np.zeros(len(part))
        predicted[order] = np.concatenate(
            divided(batches, predict, lambda chosen: advance(len(chosen)))
        )
        return predicted

    def _in_words(self, number: float) -> str:
        return f"{number:.3f}" if self.classes is None else self.classes[int(number)]

    def _note(self, items: np.ndarray) -> str:
        if self.classes is None:
            return "× 100"
        most = np.bincount(items[:, 0].astype(int)).max()
        return f"in percent; the most frequent class alone: {100 * most / len(items):.1f}"

    def _pictures(self, items: np.ndarray) -> list[Picture]:
        if self.classes is None:
            return [draw_predictions(items)]
        return [draw_confusions(items, self.classes)] if len(self.classes) <= _MOST_CLASSES else []


# --- samples ----------------------------------------------------------------------------------


def _samples(
    examples: Sequence[Example], outputs: Sequence[str], join: Callable[[str], str]
) -> list[Sample]:
    """Returns a dozen examples that are spread over the part; `join` makes words of pieces."""
    samples = []
    for index in spread(range(len(examples)), _SAMPLES):
        example = examples[index]
        given = {"Text": join(example.text)}
        if example.pair is not None:
            given["Second text"] = join(example.pair)
        samples.append(Sample(given={**given, "Label": str(example.label)}, made=outputs[index]))
    return samples
