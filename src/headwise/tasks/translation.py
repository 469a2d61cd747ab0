"""Translation: sentence pairs, an encoder-decoder model, and BLEU and chrF of a beam search.

The model is that of Vaswani et al. 2017, *Attention Is All You Need*,
https://arxiv.org/abs/1706.03762. Beam search ranks the ended translations y of a source x by
log p(y | x) / |y|^length_penalty.

Translations are scored by sacrebleu (Post 2018, *A Call for Clarity in Reporting BLEU Scores*,
https://aclanthology.org/W18-6319): BLEU (Papineni et al. 2002, https://aclanthology.org/P02-1040)
and chrF (Popović 2015, https://aclanthology.org/W15-3049), which is counted on the raw text.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import datasets
from pydantic import Field, field_validator, model_validator
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor
from transformers import PreTrainedTokenizerFast, StoppingCriteria, StoppingCriteriaList

from headwise.data import tokenizers
from headwise.data.builtin import interface_strings
from headwise.data.encode import Columns, EncodedDataset, lengths
from headwise.data.settings import Data
from headwise.messages import check_choice
from headwise.models.modeling import HeadwiseModel
from headwise.models.text import Seq2SeqLM, shift_right
from headwise.ops import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.tasks.scores import Outcome, Sample, Score, spread
from headwise.tasks.task import Positions, PredictRequest, Task, Track
from headwise.training.batches import token_batches

_SEARCH_TOKENS = 4096  # source tokens of a batch, times the beam size
_LINES = 512  # lines that `predict` translates before it prints them
_SAMPLES = 24  # translations in a report
# Arguments of BLEU that decide its value, given the counts; the others decide the counts.
_COUNT_OPTIONS = ("smooth_method", "smooth_value", "max_ngram_order", "effective_order")


class TranslationData(Data):
    """Sentence pairs: the columns `source` and `target`."""

    language: str | None = None
    """Code of the target language, which interface strings set. BLEU counts characters of languages
    without spaces between words (zh, ja)."""
    max_length: int | None = Field(None, ge=1)
    """Training pairs with more words than this on either side are left out (IWSLT14: 175). Pairs of
    a validation or test split that is given are kept."""
    max_ratio: float | None = Field(None, ge=1)
    """Training pairs are left out whose longer side has more than this times the words of the
    shorter one (IWSLT14: 1.5)."""


class Vocabularies(tokenizers.TokenizerSettings):
    """Settings of the vocabularies of the source language and the target language."""

    joint: bool = True
    """Whether both languages share one vocabulary, so that its embeddings can be shared, or each
    has its own."""
    target_vocab_size: int | None = Field(None, ge=1)
    """With `joint: false`, the size of the target vocabulary; vocab_size is then that of the source
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
    bleu: dict[str, bool | int | float | str | None] = {}
    """Arguments of sacrebleu's `BLEU`. By default `tokenize` is zh for Chinese, char for Japanese,
    else 13a. Older papers have the BLEU of `multi-bleu.perl`,
    `{smooth_method: none, force: true}`, on text that is already tokenised, as IWSLT14, with
    `tokenize: none`; on WMT14 en-de mostly with `split_compounds: true`, which splits words at
    hyphens, `a-b` to `a ##AT##-##AT## b`, as tensor2tensor does (about half a point higher)."""

    @field_validator("bleu")
    @classmethod
    def _check_flags(cls, bleu: dict[str, Any]) -> dict[str, Any]:
        for name in ("lowercase", "force", "effective_order", "split_compounds"):
            check_choice(name, bleu.get(name, False), (True, False))  # sacrebleu takes any value
        return bleu


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
    column_types: ClassVar = {"source": "texts", "target": "texts"}
    key = "source"
    stacks = (("encoder", 10), ("decoder", 10))  # table 1 of https://arxiv.org/abs/2210.05144
    clean_keys: ClassVar = {"max_length", "max_ratio"}
    clean_features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
    features = datasets.Features(
        dict.fromkeys(("input_ids", "labels"), datasets.List(datasets.Value("int32")))
    )

    @classmethod
    def clean(cls, columns: Columns, data: TranslationData, split: str) -> Columns:
        """Leaves out pairs with an empty side, and training pairs that are too long or uneven."""
        pairs = zip(*(map(_one_line, columns[side]) for side in cls.columns), strict=True)
        kept = [x for x in pairs if all(x) and (split != "train" or _fits(x, data))]
        return {"source": [pair[0] for pair in kept], "target": [pair[1] for pair in kept]}

    def open(self, folder: Path | None) -> None:
        data, settings = self.recipe.data, self.recipe.tokenizer
        options = data.options if data.path in self.built_in else {}
        self.language = data.language or options.get("language")
        bleu_metric(self.recipe.evaluation.bleu, self.language)  # raises an error before training
        is_joint = settings.joint
        if folder is not None and (folder / "tokenizer.json").is_file():
            is_joint = not (folder / "target").is_dir()
        if is_joint:
            self.source = self.target = self._open(folder, settings.vocab_size, "source", "target")
        else:
            self.source = self._open(folder, settings.vocab_size, "source")
            size = settings.target_vocab_size or settings.vocab_size
            self.target = self._open(folder and folder / "target", size, "target")
        sides = self.source, self.target
        self.cache_key = [tokenizer.backend_tokenizer.to_str() for tokenizer in sides]
        self._encoders = [tokenizers.encoder_of(tokenizer) for tokenizer in sides]
        self.padding = {"input_ids": self.source.pad_token_id, "labels": IGNORED_LABEL}

    def _open(self, folder: Path | None, size: int, *sides: str) -> PreTrainedTokenizerFast:
        settings = self.recipe.tokenizer.model_copy(update={"vocab_size": size})

        def texts() -> Iterator[str]:
            for columns in self.rows_to_learn_from(settings.sample_rows):
                for side in sides:
                    yield from columns[side]

        cache_key = [*sides, self.content_hash("train")]
        return tokenizers.open_tokenizer(settings, "translation", folder, texts, cache_key)

    def encode(self, columns: Columns) -> Columns:
        source, target = self._encoders
        return {
            "input_ids": [[*ids, self.source.eos_token_id] for ids in source(columns["source"])],
            "labels": [[*ids, self.target.eos_token_id] for ids in target(columns["target"])],
        }

    def items(self, rows: Any, split: str) -> EncodedDataset:
        return EncodedDataset(rows, lengths(rows, "input_ids", "labels"))

    @classmethod
    def sizes(cls, recipe: TranslationRecipe, task: Any = None) -> dict[str, Any]:
        settings, arguments = recipe.tokenizer, {}
        if task is None:
            is_joint, size = settings.joint, tokenizers.largest_size(settings, "translation")
            target_size = settings.target_vocab_size or size
        else:
            is_joint, size = task.source is task.target, tokenizers.vocab_size(task.source)
            target_size = tokenizers.vocab_size(task.target)
            arguments = {name: getattr(task.target, name) for name in tokenizers.SPECIAL_ID_NAMES}
        if not recipe.pretrained:
            arguments["share_embeddings"] = "all" if is_joint else "target"
        return {**arguments, "vocab_size": size, "target_vocab_size": target_size}

    def build_model(self, recipe: Any) -> HeadwiseModel:
        model = super().build_model(recipe)
        # It is saved with the model, so that transformers' generate() searches as `evaluate` does.
        model.generation_config.update(**_search_options(recipe.evaluation))
        return model

    def save(self, folder: Path) -> None:
        """Writes the tokenizer; a separate target tokenizer goes into the folder `target`."""
        self.source.save_pretrained(folder)
        if self.target is not self.source:
            self.target.save_pretrained(folder / "target")

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns source and target; the decoder reads the target shifted, behind `<bos>`."""
        labels, padding = batch["labels"], self.target.pad_token_id
        inputs = shift_right(labels, self.target.bos_token_id, padding)
        inputs = inputs.masked_fill(labels == IGNORED_LABEL, padding)
        source, target = map(tokenizers.token_names, (self.source, self.target))
        return {
            "encoder": Positions(batch["input_ids"].shape, batch["input_ids"], source),
            "decoder": Positions(inputs.shape, inputs, target),
        }

    def evaluate(self, model: Any, split: str, evaluation: Any, track: Track = iter) -> Outcome:
        self.stored_items(split)  # raises an error for a stream
        sources, references = (list(self.rows[split][side]) for side in ("source", "target"))
        outputs = translate(model, self.source, self.target, sources, evaluation, track)
        scores = bleu_and_chrf(outputs, references, evaluation.bleu, self.language)
        long = [i for i, text in enumerate(sources) if len(text.split()) >= 4]  # worth showing
        samples = [
            Sample(given={"Source": sources[i], "Reference": references[i]}, made=outputs[i])
            for i in spread(long, _SAMPLES)
        ]
        return Outcome(scores=scores, outputs=outputs, samples=samples)

    @classmethod
    def predict(
        cls, folder: Path, recipe: Any, model: Any, request: PredictRequest
    ) -> Iterator[str]:
        """Yields the translation of each line."""
        request.refuse(cls.name, "number", "output")
        target_folder = folder / "target" if (folder / "target").is_dir() else folder
        source, target = map(tokenizers.read_tokenizer, (folder, target_folder))
        lines = request.lines()
        for begin in range(0, len(lines), _LINES):
            texts = lines[begin : begin + _LINES]
            yield from translate(model, source, target, texts, recipe.evaluation)


def translate(
    model: Any,
    source: PreTrainedTokenizerFast,
    target: PreTrainedTokenizerFast,
    texts: Sequence[str],
    evaluation: TranslationEvaluation,
    track: Track = iter,
) -> list[str]:
    """Returns the translation of each text as one line; that of an empty text is empty."""
    lines = [_one_line(text) for text in texts]
    unique = list(dict.fromkeys(filter(None, lines)))
    if not unique:
        return lines
    sizes = [len(ids) for ids in source(unique)["input_ids"]]
    indices = token_batches(sizes, max(_SEARCH_TOKENS // evaluation.beam_size, *sizes))
    batches = [[unique[index] for index in batch] for batch in indices]

    def search(batch: list[str]) -> list[str]:
        inputs = source(batch, padding=True, return_tensors="pt").to(model.device)
        limits = inputs["attention_mask"].sum(1) + evaluation.max_length_extra
        if model.config.max_positions is not None:
            limits = limits.clamp(max=model.config.max_positions)
        ids = model.generate(
            **inputs,
            **_search_options(evaluation),
            max_length=int(limits.max()) + 1,  # the start token counts
            stopping_criteria=StoppingCriteriaList([_LengthLimit(limits)]),
        )
        return [_one_line(text) for text in target.batch_decode(ids, skip_special_tokens=True)]

    translations = {"": ""}
    for batch in track(batches):
        translations.update(zip(batch, search(batch), strict=True))
    return [translations[line] for line in lines]


class _LengthLimit(StoppingCriteria):
    """Ends each translation at a limit of its own, whatever else is in the batch."""

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Any:
        beams = len(input_ids) // len(self.limits)  # each source has as many rows
        return input_ids.size(1) > self.limits.repeat_interleave(beams)


def _search_options(evaluation: TranslationEvaluation) -> dict[str, Any]:
    """Returns the arguments of `generate` that do not depend on the source."""
    search = {"num_beams": evaluation.beam_size, "length_penalty": evaluation.length_penalty}
    return {**search, "early_stopping": False, "do_sample": False}


def _one_line(text: str | None) -> str:
    """Returns a text, or None, as one line."""
    return " ".join(filter(None, (line.strip() for line in (text or "").splitlines())))


def _fits(pair: tuple[str, str], data: TranslationData) -> bool:
    shorter, longer = sorted(len(side.split()) for side in pair)
    return longer <= min(data.max_length or math.inf, (data.max_ratio or math.inf) * shorter)


# --- BLEU and chrF ------------------------------------------------------------------------------


def bleu_metric(options: Mapping[str, Any], language: str | None = None) -> BLEU:
    """Returns sacrebleu's BLEU for the code of a target language.

    Args:
        options: arguments of sacrebleu's `BLEU`, and `split_compounds`.
        language: decides the tokenisation if `tokenize` is not given.

    Raises:
        ValueError: sacrebleu has no such option, cannot use it, or lacks a package for it.
    """
    code = re.split("[-_]", (language or "").lower())[0]
    arguments = {"tokenize": {"zh": "zh", "ja": "char"}.get(code, "13a"), **options}
    is_split = arguments.pop("split_compounds", False)
    try:
        metric = BLEU(**arguments)
        metric.corpus_score(["a b c d"], [["a b d c"]])
    except Exception as error:  # sacrebleu checks few of its arguments: errors are of any type
        raise ValueError(f"evaluation.bleu is {dict(options)}: {error}") from error
    if is_split:
        tokenize = metric.tokenizer
        metric.tokenizer = lambda line: split_compounds(tokenize(line))
        metric.tokenizer_signature += "+compound-split"
    return metric


def bleu_and_chrf(
    translations: Sequence[str],
    references: Sequence[str],
    bleu: Mapping[str, Any] | None = None,
    language: str | None = None,
) -> list[Score]:
    """Returns BLEU and chrF, in percent, of translations with one reference each.

    The notes of the scores are sacrebleu's signatures, to be published with the numbers.

    >>> bleu, chrf = bleu_and_chrf(["The cat sat on the mat ."], ["The cat sat on the mat."])
    >>> round(bleu.value, 6), bleu.note.partition("|version")[0]
    (100.0, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    bleu, scores = bleu or {}, []
    options = {name: bleu[name] for name in bleu if name in _COUNT_OPTIONS}
    metrics = {"BLEU": (bleu_metric(bleu, language), options), "chrF": (CHRF(), {})}
    for name, (metric, arguments) in metrics.items():
        rows = metric._extract_corpus_statistics(translations, [references])
        note = str(metric.get_signature())
        scores.append(Score.from_rows(name, rows, name.lower(), options=arguments, note=note))
    return scores


def split_compounds(text: str) -> str:
    """Splits words at hyphens, as tensor2tensor does: matches do not overlap.

    >>> split_compounds("a well-known - x-y-z")
    'a well ##AT##-##AT## known - x ##AT##-##AT## y-z'
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)
