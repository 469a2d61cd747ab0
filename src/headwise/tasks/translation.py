"""Translation: sentence pairs, an encoder-decoder model, BLEU and chrF of beam search.

Its pieces are in files of their own: corpora (`text.corpora`), vocabularies
(`text.tokenization`), batches (`text.pairs`), search (`text.translating`) and scores
(`text.metrics`).
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import Self

from headwise.models.base import HeadwiseModel
from headwise.models.config import Seq2SeqConfig
from headwise.models.seq2seq import Seq2SeqLM
from headwise.recipe.settings import ModelSettings, Recipe
from headwise.tasks.outcome import Outcome, Sample, Score, spread
from headwise.tasks.parts import PARTS
from headwise.tasks.task import Advance, Items, Task
from headwise.tasks.text.corpora import Corpus, CorpusSettings, InterfaceStringsCorpus, load_corpus
from headwise.tasks.text.metrics import TranslationEvaluation, compare_to_baseline, score
from headwise.tasks.text.pairs import TranslationDataset, TranslationItem, collate
from headwise.tasks.text.tokenization import TOKENIZER, TokenizerSettings, TranslationTokenizer
from headwise.tasks.text.translating import translate

_SAMPLES = 24


class TranslationModel(ModelSettings):
    """Sizes of the encoder-decoder model."""

    encoder_layers: int = Field(6, ge=1, description="layers of the encoder")
    decoder_layers: int = Field(6, ge=1, description="layers of the decoder")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="of the training loss")
    share_embeddings: Literal["all", "target", "none"] | None = Field(
        None, description="default: all with a joint vocabulary, else target and output"
    )

    def config(self, *, joint: bool = True, **encoding: Any) -> Seq2SeqConfig:
        """The configuration; `joint` says whether there is one vocabulary for both languages."""
        settings = self.model_dump()
        shared = settings.pop("share_embeddings") or ("all" if joint else "target")
        return Seq2SeqConfig(share_embeddings=shared, **settings, **encoding)


class TranslationRecipe(Recipe):
    """What to translate, with what, and how to score it."""

    task: Literal["translation"] = Field("translation", description="what is learned")
    data: CorpusSettings = Field(
        default_factory=lambda: InterfaceStringsCorpus(), description="the corpus"
    )
    tokenizer: TokenizerSettings = Field(
        default_factory=lambda: TokenizerSettings(), description="the vocabularies"
    )
    model: TranslationModel = Field(
        default_factory=lambda: TranslationModel(), description="sizes and attention"
    )
    evaluation: TranslationEvaluation = Field(
        default_factory=lambda: TranslationEvaluation(), description="search and scores"
    )

    @model_validator(mode="after")
    def _check_vocabularies(self) -> Self:
        if self.model.share_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError(
                "model.share_embeddings is 'all', which needs tokenizer.joint: true; use 'target'"
            )
        return self


class Translation(Task):
    """A parallel corpus, encoded.

    Args:
        corpus: sentence pairs in three parts.
        tokenizer: of both languages.
    """

    recipe_class = TranslationRecipe
    model_class = Seq2SeqLM
    # Those of the MoA paper's tables.
    macs_lengths = {"encoder": 10, "decoder": 10}  # noqa: RUF012

    def __init__(self, corpus: Corpus, tokenizer: TranslationTokenizer) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.train, self.validation, self.test = (
            TranslationDataset(getattr(corpus, part), tokenizer) for part in PARTS
        )
        origin, *parts = corpus.notes.summary()
        vocabulary = f"{tokenizer.source_vocab_size:,} subwords, joint"
        if not tokenizer.is_joint:
            vocabulary = (
                f"{tokenizer.source_vocab_size:,} source and {tokenizer.target_vocab_size:,} "
                f"target subwords"
            )
        self.notes = {"corpus": origin}
        for part in parts:
            name, _, words = part.partition(": ")
            self.notes[name] = words
        self.notes["vocabulary"] = vocabulary

    @classmethod
    def prepare(cls, recipe: TranslationRecipe, folder: Path | None = None) -> Self:
        corpus = load_corpus(recipe.data)
        if folder is not None and (folder / TOKENIZER).is_dir():
            return cls(corpus, TranslationTokenizer.load(folder / TOKENIZER))
        return cls(corpus, TranslationTokenizer.train(corpus.train, recipe.tokenizer))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / TOKENIZER)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for part in PARTS:
            for pair in getattr(self.corpus, part):
                digest.update("\0".join((part, *pair, "")).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @classmethod
    def nominal_config(cls, recipe: TranslationRecipe) -> Seq2SeqConfig:
        """With vocabularies as large as they may be; a small corpus gives fewer subwords."""
        tokenizer = recipe.tokenizer
        return recipe.model.config(
            vocab_size=tokenizer.source_vocab_size or tokenizer.vocab_size,
            target_vocab_size=tokenizer.target_vocab_size or tokenizer.vocab_size,
            joint=tokenizer.joint,
        )

    def model_config(self, settings: TranslationModel) -> Seq2SeqConfig:
        tokenizer = self.tokenizer
        return settings.config(
            vocab_size=tokenizer.source_vocab_size,
            target_vocab_size=tokenizer.target_vocab_size,
            joint=tokenizer.is_joint,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )

    def collate(self, items: list[TranslationItem]) -> dict[str, Tensor]:
        return collate(items, self.tokenizer.pad_token_id)

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: TranslationEvaluation,
        advance: Advance,
    ) -> Outcome:
        """BLEU and chrF of the part's translations."""
        assert isinstance(model, Seq2SeqLM) and isinstance(part, TranslationDataset)
        sources = [pair.source for pair in part.pairs]
        references = [pair.target for pair in part.pairs]
        translations = translate(model, self.tokenizer, sources, evaluation, advance=advance)
        language = self.corpus.target_language
        scored = score(translations, references, evaluation, language=language)
        scores = [
            Score(name=name, value=value, low=low, high=high, note=signature)
            for name, value, (low, high), signature in (
                ("BLEU", scored.bleu, scored.bleu_interval, scored.bleu_signature),
                ("chrF", scored.chrf, scored.chrf_interval, scored.chrf_signature),
            )
        ]
        samples = [
            Sample(given={"Source": sources[i], "Reference": references[i]}, made=translations[i])
            for i in _worth_showing(sources)
        ]
        return Outcome(scores=scores, outputs=translations, samples=samples)

    def statistic(self, items: np.ndarray) -> float:
        raise NotImplementedError("BLEU is no function of figures per sentence")

    def paired_test(
        self, baseline: Outcome, other: Outcome, evaluation: TranslationEvaluation
    ) -> tuple[float, float]:
        """By sacrebleu's paired bootstrap over the sentences of the test part."""
        found = compare_to_baseline(
            baseline.outputs,
            {"other": other.outputs},
            [pair.target for pair in self.corpus.test],
            evaluation,
            language=self.corpus.target_language,
        )["other"]
        return found.bleu_delta, found.bleu_p_value


def _worth_showing(sources: Sequence[str]) -> Sequence[int]:
    """Which sentences to show: of some length, spread over the part."""
    return spread([i for i, source in enumerate(sources) if len(source.split()) >= 4], _SAMPLES)
