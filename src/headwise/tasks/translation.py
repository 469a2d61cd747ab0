"""Translation: sentence pairs, an encoder-decoder model, and BLEU and chrF of a beam search.

The model is that of Vaswani et al. 2017, *Attention Is All You Need*,
https://arxiv.org/abs/1706.03762. A search keeps the `beam_size` likeliest beginnings y of a
translation of x, and ranks those that have ended by log p(y | x) / |y|^length_penalty.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import datasets
from pydantic import Field, model_validator
from torch import Tensor
from transformers import PreTrainedTokenizerFast, StoppingCriteria, StoppingCriteriaList

from headwise.data import tokenizers
from headwise.data.builtin import interface_strings
from headwise.data.encode import Columns, Items, lengths
from headwise.data.load import DataError
from headwise.data.settings import Data
from headwise.messages import shown
from headwise.models.for_tasks import Seq2SeqLM, shift_right
from headwise.models.modeling import HeadwiseModel
from headwise.ops import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.tasks.bleu import bleu_metric, scores_of
from headwise.tasks.scores import Outcome, Sample, spread
from headwise.tasks.task import SPECIAL, Each, Positions, Task, Wish
from headwise.training.batches import token_batches

_AT_ONCE = 4096  # source tokens, times the beam size, for which a search is made at once
_LINES = 512  # that `predict` translates before it gives them out
_SAMPLES = 24  # translations that a report shows


class TranslationData(Data):
    """Sentence pairs: the columns `source` and `target`."""

    language: str | None = None
    """Code of the target language, known of interface strings. BLEU counts characters where there
    are no spaces between words (zh, ja)."""
    max_length: int | None = Field(None, ge=1)
    """Training pairs with more words than this on either side are left out (IWSLT14: 175). Given
    validation and test parts are never filtered."""
    max_ratio: float | None = Field(None, ge=1)
    """Training pairs are left out whose longer side has more than this times the words of the
    shorter one (IWSLT14: 1.5)."""


class Vocabularies(tokenizers.TokenizerSettings):
    """The vocabularies of two languages."""

    joint: bool = True
    """Whether both languages have one vocabulary, whose embeddings can be shared, or each has its
    own."""
    target_vocab_size: int | None = Field(None, ge=1)
    """With `joint: false`, the size of the target vocabulary, if vocab_size is that of the source
    alone."""


class TranslationEvaluation(Evaluation):
    """How translations are searched for and scored."""

    beam_size: int = Field(5, ge=1)
    """Number of hypotheses that beam search keeps; 1 is greedy search."""
    length_penalty: float = 1.0
    """Log probabilities of hypotheses are divided by their length to this power; values above 1
    favour longer translations."""
    max_length_extra: int = Field(50, ge=1)
    """Number of tokens that a translation may have more than its source."""
    bleu: dict[str, Any] = {}
    """How BLEU is counted: arguments of sacrebleu's `BLEU`. By default `tokenize` is zh for
    Chinese, char for Japanese, else 13a. Older papers have the BLEU of `multi-bleu.perl`,
    `{smooth_method: none, force: true}`, on text that is already tokenised, as IWSLT14, with
    `tokenize: none`; on WMT14 en-de mostly with `split_compounds: true`, which splits words at
    hyphens, `a-b` to `a ##AT##-##AT## b`, as tensor2tensor does (about half a point higher)."""


class TranslationRecipe(Recipe):
    """The recipe of a translation."""

    data: TranslationData
    """The sentence pairs."""
    tokenizer: Vocabularies = Field(default_factory=Vocabularies)
    """The vocabularies."""
    evaluation: TranslationEvaluation = Field(default_factory=TranslationEvaluation)
    """How translations are searched for and scored."""

    @model_validator(mode="after")
    def _check_vocabularies(self) -> Self:
        joint = self.tokenizer.joint
        if joint and self.tokenizer.target_vocab_size is not None:
            raise ValueError(
                "tokenizer.target_vocab_size is given: expected tokenizer.joint: false"
            )
        # Two vocabularies may happen to have equal sizes.
        if not joint and self.model.get("share_embeddings") == "all":
            raise ValueError("model.share_embeddings is 'all': expected tokenizer.joint: true")
        return self


class Translation(Task):
    """Translation of sentence pairs; both sides end with `<eos>`."""

    name = "translation"
    recipe_class = TranslationRecipe
    model_class = Seq2SeqLM
    built_in: ClassVar = {"interface-strings": interface_strings}
    columns: ClassVar = {"source": "source", "target": "target"}
    key = "source"
    counted = (("encoder", 10), ("decoder", 10))  # table 1 of https://arxiv.org/abs/2210.05144
    clean_keys: ClassVar = {"max_length", "max_ratio"}
    clean_features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
    features = datasets.Features(
        dict.fromkeys(("input_ids", "labels"), datasets.List(datasets.Value("int32")))
    )
    pipeline = "translation"

    @classmethod
    def clean(cls, columns: Columns, data: TranslationData, part: str) -> Columns:
        """Leaves out pairs with an empty side, and those of the training part that do not fit."""
        pairs = zip(*(map(_line, columns[side]) for side in cls.columns), strict=True)
        kept = [x for x in pairs if all(x) and (part != "train" or _fits(x, data))]
        return {"source": [pair[0] for pair in kept], "target": [pair[1] for pair in kept]}

    def open(self, folder: Path | None) -> None:
        data, settings = self.recipe.data, self.recipe.tokenizer
        options = data.options if data.path in self.built_in else {}
        self.language = data.language or options.get("language")
        bleu_metric(self.recipe.evaluation.bleu, self.language)  # what it lacks is told at once
        is_joint = settings.joint
        if folder is not None and (folder / "tokenizer.json").is_file():
            is_joint = not (folder / "target").is_dir()
        if is_joint:
            self.source = self.target = self._open(folder, settings.vocab_size, "source", "target")
        else:
            self.source = self._open(folder, settings.vocab_size, "source")
            size = settings.target_vocab_size or settings.vocab_size
            self.target = self._open(folder and folder / "target", size, "target")
        both = self.source, self.target
        self.made_of = [tokenizer.backend_tokenizer.to_str() for tokenizer in both]
        self._encoders = [tokenizers.encoder_of(tokenizer) for tokenizer in both]
        self.padding = {"input_ids": self.source.pad_token_id, "labels": IGNORED_LABEL}

    def _open(self, folder: Path | None, size: int, *sides: str) -> PreTrainedTokenizerFast:
        settings = self.recipe.tokenizer.model_copy(update={"vocab_size": size})

        def texts() -> Iterator[str]:
            for columns in self.to_learn_from(settings.sample_rows):
                for side in sides:
                    yield from columns[side]

        made_of = [*sides, self.digest("train")]
        return tokenizers.open_tokenizer(settings, "translation", folder, texts, made_of)

    def encode(self, columns: Columns) -> Columns:
        source, target = self._encoders
        return {
            "input_ids": [[*ids, self.source.eos_token_id] for ids in source(columns["source"])],
            "labels": [[*ids, self.target.eos_token_id] for ids in target(columns["target"])],
        }

    def items(self, rows: Any, part: str) -> Items:
        return Items(rows, lengths(rows, "input_ids", "labels"))

    @classmethod
    def sizes(cls, recipe: TranslationRecipe, task: Any = None) -> dict[str, Any]:
        settings, found = recipe.tokenizer, {}
        if task is None:
            is_joint, size = settings.joint, tokenizers.largest_size(settings, "translation")
            sizes = size, settings.target_vocab_size or size
        else:
            is_joint = task.source is task.target
            sizes = tokenizers.vocab_size(task.source), tokenizers.vocab_size(task.target)
            found = {name: getattr(task.target, name) for name in SPECIAL}
        if not recipe.pretrained:
            found["share_embeddings"] = "all" if is_joint else "target"
        return {**found, "vocab_size": sizes[0], "target_vocab_size": sizes[1]}

    def build_model(self, recipe: Any) -> HeadwiseModel:
        model = super().build_model(recipe)
        # What is saved with it, so that transformers' generate() searches as `evaluate` does.
        model.generation_config.update(**_search(recipe.evaluation))
        return model

    def save(self, folder: Path) -> None:
        """A target vocabulary of its own has its tokenizer in a folder `target` inside."""
        self.source.save_pretrained(folder)
        if self.target is not self.source:
            self.target.save_pretrained(folder / "target")

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """The decoder reads the labels as its model shifts them, behind `<bos>`."""
        labels, padding = batch["labels"], self.target.pad_token_id
        read = shift_right(labels, self.target.bos_token_id, padding)
        read = read.masked_fill(labels == IGNORED_LABEL, padding)
        source, target = map(tokenizers.token_names, (self.source, self.target))
        return {
            "encoder": Positions(batch["input_ids"].shape, batch["input_ids"], source),
            "decoder": Positions(read.shape, read, target),
        }

    def evaluate(self, model: Any, part: str, evaluation: Any, each: Each) -> Outcome:
        self.stored(part)
        sources, references = (list(self.rows[part][side]) for side in ("source", "target"))
        made = translate(model, self.source, self.target, sources, evaluation, each)
        scores = scores_of(made, references, evaluation.bleu, self.language)
        long = [i for i, text in enumerate(sources) if len(text.split()) >= 4]  # worth showing
        samples = [
            Sample(given={"Source": sources[i], "Reference": references[i]}, made=made[i])
            for i in spread(long, _SAMPLES)
        ]
        return Outcome(scores=scores, outputs=made, samples=samples)

    @classmethod
    def predict(cls, folder: Path, recipe: Any, model: Any, wish: Wish) -> Iterator[str]:
        """Yields the translation of each line."""
        wish.refuse(cls.name, "number", "output")
        second = folder / "target" if (folder / "target").is_dir() else folder
        source, target = map(tokenizers.read_tokenizer, (folder, second))
        lines = wish.lines()
        for begin in range(0, len(lines), _LINES):
            some = lines[begin : begin + _LINES]
            yield from translate(model, source, target, some, recipe.evaluation, Each())


def translate(
    model: Any,
    source: PreTrainedTokenizerFast,
    target: PreTrainedTokenizerFast,
    texts: Sequence[str],
    evaluation: TranslationEvaluation,
    each: Each,
) -> list[str]:
    """Returns the translation of each text, one line; that of an empty text is empty."""
    lines = [_line(text) for text in texts]
    different = list(dict.fromkeys(filter(None, lines)))
    if not different:
        return lines
    numbers = [len(ids) for ids in source(different)["input_ids"]]
    divided = token_batches(numbers, max(_AT_ONCE // evaluation.beam_size, *numbers))
    batches = [[different[index] for index in batch] for batch in divided]

    def search(batch: list[str]) -> list[str]:
        inputs = source(batch, padding=True, return_tensors="pt").to(model.device)
        limits = inputs["attention_mask"].sum(1) + evaluation.max_length_extra
        if model.config.max_positions is not None:
            limits = limits.clamp(max=model.config.max_positions)
        made = model.generate(
            **inputs,
            **_search(evaluation),
            max_length=int(limits.max()) + 1,  # the start token is one of the sequence
            stopping_criteria=StoppingCriteriaList([_OwnLimit(limits)]),
        )
        return [_line(text) for text in target.batch_decode(made, skip_special_tokens=True)]

    translations = {"": ""}
    for batch, found in zip(batches, each(batches, search), strict=True):
        translations.update(zip(batch, found, strict=True))
    return [translations[line] for line in lines]


class _OwnLimit(StoppingCriteria):
    """Ends each translation at the limit of its own source, whatever else is in the batch."""

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Any:
        # Rows are hypotheses, the same number of them for each source.
        beams = len(input_ids) // len(self.limits)
        return input_ids.size(1) > self.limits.repeat_interleave(beams)


def _search(evaluation: TranslationEvaluation) -> dict[str, Any]:
    """The arguments of `generate` but for the lengths of translations."""
    sizes = {"num_beams": evaluation.beam_size, "length_penalty": evaluation.length_penalty}
    return {**sizes, "early_stopping": False, "do_sample": False}


def _line(text: Any) -> str:
    """Returns text, or None, as one line."""
    if not isinstance(text, str | None):
        raise DataError(
            f"data.columns names a column that holds {shown(text)}, expected one of texts, such as "
            f"translation.de"
        )
    return " ".join(filter(None, (line.strip() for line in (text or "").splitlines())))


def _fits(pair: tuple[str, str], data: TranslationData) -> bool:
    shorter, longer = sorted(len(side.split()) for side in pair)
    most = data.max_length or math.inf, (data.max_ratio or math.inf) * shorter
    return longer <= min(most)
