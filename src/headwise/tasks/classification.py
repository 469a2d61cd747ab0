"""Classification and regression: a class or a number for a text or a pair of texts.

The encoder reads `<bos> text <eos>`, or `<bos> text <eos> <eos> other text <eos>`, as RoBERTa (Liu
et al. 2019, https://arxiv.org/abs/1907.11692). A perceptron reads one vector of its top layer:

    logits = W₂ f(W₁ v + b₁) + b₂

where v is the mean over the tokens, or the first token's vector as in BERT (Devlin et al. 2019,
https://arxiv.org/abs/1810.04805). The loss is the cross-entropy; of a regression, which has one
output, the squared error. The encoder may be that of a masked language model (`model.pretrained`),
whose sizes, vocabulary and weights it then has; only the perceptron is new.
"""

import copy
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import datasets
import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor
from transformers import PreTrainedConfig, TextClassificationPipeline

from headwise.data import tokenizers
from headwise.data.builtin import docstrings
from headwise.data.encode import Columns, EncodedDataset, lengths, numeric_column
from headwise.data.load import DataError
from headwise.data.settings import Data, absolute
from headwise.data.splits import clean_rows, read_splits
from headwise.data.stream import Stream
from headwise.messages import expected_one_of, shown
from headwise.models.config import SequenceClassifierConfig, StackConfig
from headwise.models.text import MaskedLM, SequenceClassifier
from headwise.ops import IGNORED_LABEL
from headwise.recipes.pretrained import pretrained_config, pretrained_model
from headwise.recipes.recipe import Recipe
from headwise.tasks.scores import Outcome, Sample, Score, spread
from headwise.tasks.task import Positions, PredictRequest, Task, Track

_SAMPLES = 12  # examples in a report
_BATCH_SIZE = 64  # texts of a batch in evaluation and in `predict`
_REGRESSION_SCORES = ("Pearson", "Spearman")  # correlations
_TITLES = {"text": "Text", "pair": "Second text", "label": "Label"}  # of samples
# The arguments of configurations that encoder and classifier share.
_ENCODER_KEYS = {field.name for field in fields(StackConfig)} | {"vocab_size"}
_ENCODER_KEYS -= {field.name for field in fields(PreTrainedConfig)}


class LabelledData(Data):
    """Labelled texts: the columns `text` and `label`, and `pair` for the second text of pairs."""

    max_length: int = Field(512, ge=8)
    """Largest number of tokens of an example, special tokens included. Longer examples are cut at
    the end, and of a pair first the longer text. A batch has training.batch_tokens / max_length
    examples."""
    classes: list[str] | None = None
    """Names of the classes, in the order of the model's outputs. A label that is a number is the
    index of its class, unless the names are numbers. Default: the sorted labels of the training
    data; a stream needs the names."""
    regression: bool = False
    """Whether labels are numbers to predict, not classes."""

    @field_validator("options")
    @classmethod
    def _absolute_file(cls, options: dict[str, Any]) -> dict[str, Any]:  # of a probe
        is_file = "file" in options and isinstance(options["file"], str)
        return {**options, "file": absolute(options["file"])} if is_file else options

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        if self.regression and self.classes is not None:
            raise ValueError("classes is given and regression is true, expected one of them")
        if self.streaming and self.classes is None and not self.regression:
            raise ValueError("classes is not given, expected the names of all: data are a stream")
        return self


class ClassificationRecipe(Recipe):
    """The recipe of a classification or a regression."""

    data: LabelledData
    """The labelled texts."""
    tokenizer: tokenizers.TokenizerSettings | None = None
    """The vocabulary. Default: that of model.pretrained, or byte-level BPE with 4000 subwords."""

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        if self.pretrained is not None and self.tokenizer is not None:
            raise ValueError("tokenizer and model.pretrained are given, expected one of them")
        return self


class Classification(Task):
    """The class or the number of each text."""

    name = "classification"
    recipe_class = ClassificationRecipe
    model_class = SequenceClassifier
    built_in: ClassVar = {"docstrings": docstrings}
    columns: ClassVar = {"text": "text", "pair": None, "label": "label"}
    column_types: ClassVar = {"text": "texts", "pair": "texts", "label": "texts or numbers"}
    key = "text"  # without the second text: premises of MNLI have several hypotheses
    clean_keys: ClassVar = {"classes", "regression"}
    clean_features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
    item_name = "examples"
    stacks = (("encoder", 128),)  # the length of GLUE's examples in BERT
    loss_unit = "nats per example"

    @classmethod
    def clean(cls, columns: Columns, data: LabelledData, split: str) -> Columns:
        """Leaves out rows with an empty text or without a label; of a stream also wrong labels."""
        texts, names = columns["text"], data.classes or []
        by_index: dict[Any, str | None] = {}
        if names and not any(name in ("True", "False") or _is_label(name, None) for name in names):
            by_index = {-1: None, **dict(enumerate(names))}  # -1 is no label, as on the hub
            by_index |= {str(index): name for index, name in by_index.items()}  # of tables
        second_texts: Any = columns.get("pair", texts)
        rows: list[tuple[str, str, str]] = []
        for text, second, label in zip(texts, second_texts, columns["label"], strict=True):
            if isinstance(label, float) and math.isnan(label):  # no label, as pandas has it
                label = None
            elif isinstance(label, float) and label.is_integer() and str(label) not in names:
                label = label if data.regression else int(label)  # as pandas has, beside NaN
            label = by_index.get(label, label)
            if label not in (None, "") and all(x and x.strip() for x in (text, second)):
                rows.append((text, second, str(label)))
        if data.streaming and split == "train":  # an error would end a training that is under way
            known = [row for row in rows if _is_label(row[2], data.classes)]
            if len(known) < len(rows):
                kind = "a number" if data.regression else f"one of {', '.join(names)}"
                message = f"rows whose label is not {kind} are left out"
                warnings.warn(f"{data.display_name}: {message}", stacklevel=1)
            rows = known
        cleaned = {name: [row[i] for row in rows] for i, name in enumerate(cls.columns)}
        return cleaned if "pair" in columns else {**cleaned, "pair": [None] * len(rows)}

    def open(self, folder: Path | None) -> None:
        data: LabelledData = self.recipe.data
        settings = self.recipe.tokenizer or tokenizers.TokenizerSettings()

        def texts() -> Iterator[str]:
            for columns in self.rows_to_learn_from(settings.sample_rows):
                yield from filter(None, (*columns["text"], *columns["pair"]))

        key = [self.content_hash("train")]
        self.tokenizer = tokenizers.open_tokenizer(settings, "classifier", folder, texts, key)
        self.tokenizer.model_max_length = data.max_length
        self._encoder = copy.deepcopy(self.tokenizer.backend_tokenizer)
        self._encoder.encode_special_tokens = True  # the name of one inside a text is text
        self._encoder.enable_truncation(data.max_length)  # cuts the longer text of a pair first
        self.padding = {"input_ids": self.tokenizer.pad_token_id}
        self.classes = None if data.regression else data.classes or self._training_labels()
        if self.classes is None:
            self.loss_unit = "squared error per example"  # type: ignore[misc]
        self.cache_key = [self._encoder.to_str(), self.classes]

    def _training_labels(self) -> list[str]:
        """Returns the labels of all training data, although `train` may be a share of them."""
        data = self.recipe.data
        rows = read_splits(data, type(self), ["train"])["train"]
        cleaned = clean_rows(rows, data, "train", type(self))
        labels = set(cleaned.unique("label"))
        if len(labels) == 1:
            raise DataError(f"all labels of the training data are {labels}, expected two or more")
        if len(labels) > max(20, 0.9 * len(cleaned)):
            message = f"{len(cleaned):,} texts have {len(labels):,} classes: see data.columns.label"
            warnings.warn(f"{data.display_name}: {message}", stacklevel=1)
        return sorted(
            labels,
            key=lambda name: [int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", name)],
        )

    def encode(self, columns: Columns) -> Columns:
        inputs = columns["text"]
        if any(columns["pair"]):
            inputs = list(zip(columns["text"], columns["pair"], strict=True))
        encodings = self._encoder.encode_batch_fast(inputs)
        return {
            "input_ids": [encoding.ids for encoding in encodings],
            "labels": list(map(self._encode_label, columns["text"], columns["label"])),
            "is_cut": [bool(encoding.overflowing) for encoding in encodings],
        }

    def _encode_label(self, text: str, label: str) -> float:
        if _is_label(label, self.classes):
            return float(label) if self.classes is None else self.classes.index(label)
        remedy = f"expected a number other than {IGNORED_LABEL}, since data.regression is true"
        if self.classes is not None:
            remedy = expected_one_of(label, self.classes)
        raise DataError(f"the text {shown(text)} has the label {label!r}, {remedy}")

    def _split_items(self, split: str) -> Any:
        try:
            return super()._split_items(split)
        except DataError as error:
            source = self.recipe.data.display_name if split == "train" else f"the {split} split"
            raise DataError(f"{source}: {error}") from None

    def items(self, rows: Any, split: str) -> EncodedDataset:
        """Gives every example the length `max_length`, so that a batch has examples of all lengths.

        If the label depends on the length, batches of similar length would have one class.
        """
        num_cut = int(numeric_column(rows, "is_cut").sum())
        if num_cut and not isinstance(self.rows[split], Stream):
            self.facts[split]["cut"] = num_cut
        item_lengths = np.full(len(rows), self.recipe.data.max_length)
        return EncodedDataset(rows.remove_columns("is_cut"), item_lengths)

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)

    @classmethod
    def sizes(cls, recipe: ClassificationRecipe, task: Any = None) -> dict[str, Any]:
        sizes: dict[str, Any] = {
            "problem": "regression" if recipe.data.regression else "classification",
            "classes": recipe.data.classes if task is None else task.classes,
        }
        if task is None:
            settings = recipe.tokenizer or tokenizers.TokenizerSettings()
            return {**sizes, "vocab_size": tokenizers.largest_size(settings, "classifier")}
        ids = {name: getattr(task.tokenizer, name) for name in tokenizers.SPECIAL_ID_NAMES}
        return {**sizes, **ids, "vocab_size": tokenizers.vocab_size(task.tokenizer)}

    @classmethod
    def config(cls, recipe: ClassificationRecipe, task: Any = None) -> SequenceClassifierConfig:
        arguments = {**cls.sizes(recipe, task), **recipe.model_arguments}
        if recipe.pretrained is not None:
            encoder = pretrained_config(MaskedLM, _encoder_recipe(recipe))
            arguments |= {name: getattr(encoder, name) for name in _ENCODER_KEYS}
        config = SequenceClassifierConfig(**arguments)
        length, limit = recipe.data.max_length, config.max_positions
        if limit is not None and length > limit:
            raise ValueError(
                f"data.max_length is {length}, expected at most the {limit} positions of the model"
            )
        return config

    def build_model(self, recipe: ClassificationRecipe) -> SequenceClassifier:
        model = SequenceClassifier(self.config(recipe, self))
        if (folder := recipe.pretrained_folder()) is not None:
            self.check_encoder(folder)
            masked_lm: Any = pretrained_model(MaskedLM, _encoder_recipe(recipe))
            model.encoder.load_state_dict(masked_lm.encoder.state_dict())
        return model

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins examples into a batch; `labels`, one for each, has the shape `(batch,)`."""
        batch = super().collate(items)
        return batch if self.classes else {**batch, "labels": batch["labels"].float()}

    def evaluate(self, model: Any, split: str, evaluation: Any, track: Track = iter) -> Outcome:
        """Computes the accuracy, or Pearson's and Spearman's correlation of a regression."""
        items = self.stored_items(split)
        order = np.argsort(lengths(items.rows, "input_ids")[:, 0], kind="stable")
        batches = np.split(order, range(_BATCH_SIZE, len(order), _BATCH_SIZE))

        @torch.no_grad()
        def predict(indices: np.ndarray) -> np.ndarray:
            batch = self.collate(items.__getitems__(indices.tolist()))
            batch = {name: x.to(model.device) for name, x in batch.items()}
            logits = model(**batch).logits.float().cpu()
            return (logits[:, 0] if self.classes is None else logits.argmax(-1)).numpy()

        predicted = np.empty(len(items))
        predicted[order] = np.concatenate([predict(batch) for batch in track(batches)])
        labels = numeric_column(items.rows, "labels").astype(float)
        if self.classes is None:
            outputs = [f"{number:.3f}" for number in predicted]
            rows = np.column_stack([labels, predicted])
            scores = [Score.from_rows(x, rows, x.lower(), note="× 100") for x in _REGRESSION_SCORES]
        else:
            outputs = [self.classes[int(number)] for number in predicted]
            rows = np.column_stack([labels == predicted, np.ones(len(labels))])
            majority = 100 * np.bincount(labels.astype(int)).max() / len(labels)
            note = f"in percent; the most frequent class alone: {majority:.1f}"
            scores = [Score.from_rows("accuracy", rows, "accuracy", note=note)]
        samples = []
        for index in spread(range(len(outputs)), _SAMPLES):
            row = self.rows[split][index]
            given = {title: row[name] for name, title in _TITLES.items() if row[name]}
            samples.append(Sample(given=given, made=outputs[index]))
        return Outcome(scores=scores, outputs=outputs, samples=samples)

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        classes = {} if self.classes is None else {"class": (batch["labels"], self.classes)}
        ids, names = batch["input_ids"], tokenizers.token_names(self.tokenizer)
        return {"encoder": Positions(ids.shape, ids, names, classes=classes)}

    @classmethod
    def predict(
        cls, folder: Path, recipe: ClassificationRecipe, model: Any, request: PredictRequest
    ) -> Iterator[str]:
        """Yields the class of each line and its probability, or the predicted number.

        A tab separates the texts of a pair.
        """
        request.refuse(recipe.task, "number", "output")
        keys = ("text", "text_pair")[: 1 + ("pair" in recipe.data.columns)]
        lines = [line.split("\t") for line in request.lines()]
        for texts in lines:
            if len(texts) != len(keys):
                raise ValueError(f"a line has {shown(texts)}, expected {len(keys)} texts and tabs")
        tokenizer = tokenizers.read_tokenizer(folder)
        pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer, device=model.device)
        inputs = [dict(zip(keys, texts, strict=True)) for texts in lines]
        for output in pipeline(inputs, batch_size=_BATCH_SIZE, truncation=True):
            score = output["score"]
            yield f"{score:.3f}" if recipe.data.regression else f"{output['label']}\t{score:.4f}"


def _is_label(label: str, classes: list[str] | None) -> bool:
    """Whether a label is a class, or, where there are none, a number that a model can learn."""
    if classes is not None:
        return label in classes
    try:
        return math.isfinite(float(label)) and float(label) != IGNORED_LABEL
    except ValueError:
        return False


def _encoder_recipe(recipe: ClassificationRecipe) -> ClassificationRecipe:
    """Returns a recipe whose model has no keys of the perceptron."""
    model = {key: x for key, x in recipe.model.items() if key in {"pretrained", *_ENCODER_KEYS}}
    return recipe.model_copy(update={"model": model})
