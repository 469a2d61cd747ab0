"""Translation: sentence pairs, an encoder-decoder model, BLEU and chrF of beam search."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from headwise.data.encoded import TokenItem, collate_tokens
from headwise.data.pairs.corpus import Pair, ParallelCorpus, load_parallel_corpus
from headwise.data.pairs.dataset import TranslationDataset
from headwise.data.pairs.settings import InterfaceStrings, ParallelSettings
from headwise.data.tokenizers.settings import TokenizerSettings
from headwise.data.tokenizers.tokenization import TOKENIZER, TranslationTokenizer
from headwise.models.config import Seq2SeqLMConfig
from headwise.models.for_tasks import Seq2SeqLM, shift_right
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.settings import TokenModelSettings
from headwise.tasks.bleu import (
    TranslationEvaluation,
    corpus_scores,
    corpus_statistic,
)
from headwise.tasks.outcome import Outcome, Sample, spread
from headwise.tasks.positions import Positions
from headwise.tasks.significance import Statistic
from headwise.tasks.task import ONE_EACH, PRINTED, Advance, Items, Wish
from headwise.tasks.text_task import StreamedRecipe, TokenizerTask
from headwise.tasks.translating import (
    generation_config,
    translate,
    write_tokens,
)

_SAMPLES = 24  # translations that a report shows
_DECODED, _DECODED_TOKENS = 16, 24  # sentences and tokens of each that measure the speed


class TranslationModel(TokenModelSettings):
    """Settings of the encoder-decoder model."""

    config_class = Seq2SeqLMConfig

    encoder_layers: int = Field(6, ge=1, description="Number of layers of the encoder.")
    decoder_layers: int = Field(6, ge=1, description="Number of layers of the decoder.")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing of the training loss."""
    share_embeddings: Literal["all", "target", "none"] | None = None
    """Which embeddings share their weights. all: source, target and output; target: target and
    output; none: no embeddings are shared. Default: all with a joint vocabulary, else target."""

    def config(self, *, joint: bool = True, **encoding: Any) -> Seq2SeqLMConfig:
        """Returns the configuration for vocabularies with these sizes and special tokens."""
        settings = self.sizes()
        shared = settings.pop("share_embeddings") or ("all" if joint else "target")
        return Seq2SeqLMConfig(share_embeddings=shared, **settings, **encoding)


class TranslationRecipe(StreamedRecipe):
    """The recipe of a translation: data, vocabularies, model, training, search and scores."""

    encoding_keys = ("tokenizer",)

    task: Literal["translation"] = Field("translation", description="Selects translation.")
    data: ParallelSettings = Field(default_factory=lambda: InterfaceStrings())
    """The parallel corpus."""
    tokenizer: TokenizerSettings = Field(default_factory=lambda: TokenizerSettings())
    """The vocabularies."""
    model: TranslationModel = Field(default_factory=lambda: TranslationModel())
    """Sizes and attention of the model."""
    evaluation: TranslationEvaluation = Field(default_factory=lambda: TranslationEvaluation())
    """How translations are searched for and scored."""

    @model_validator(mode="after")
    def _check_vocabularies(self) -> Self:
        if self.model.share_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError(
                "model.share_embeddings is 'all' and tokenizer.joint is false, expected a joint "
                "vocabulary: all embeddings have the same tokens then; set model.share_embeddings "
                "to target, or tokenizer.joint to true"
            )
        most = self.model.config().max_positions  # learned positions have a limit by default
        if most is not None and getattr(self.data, "streaming", False):
            raise ValueError(
                f"model.max_positions is {most} and data.streaming is true, "
                f"expected no limit: the longest pair of a stream is not known before its end; set "
                f"model.positions to sinusoidal"
            )
        return self


class Translation(TokenizerTask):
    """Translation of a parallel corpus."""

    recipe_class = TranslationRecipe
    tokenizer_class = TranslationTokenizer
    load = staticmethod(load_parallel_corpus)
    model_class = Seq2SeqLM
    pipeline = "translation"
    macs_lengths = {"encoder": 10, "decoder": 10}  # noqa: RUF012
    macs_lengths_from = "table 1 of Zhang et al. 2022"  # https://arxiv.org/abs/2210.05144

    def __init__(self, corpus: ParallelCorpus, tokenizer: TranslationTokenizer) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.encode_parts(lambda pairs: TranslationDataset(pairs, tokenizer))
        vocabulary = f"{tokenizer.source.vocab_size:,} subwords, joint"
        if not tokenizer.is_joint:
            vocabulary = (
                f"{tokenizer.source.vocab_size:,} source and {tokenizer.target.vocab_size:,} "
                f"target subwords"
            )
        self.notes = {**corpus.notes, "vocabulary": vocabulary}

    @classmethod
    def from_corpus(
        cls, corpus: ParallelCorpus, tokenizer: TranslationTokenizer, recipe: TranslationRecipe
    ) -> Self:
        return cls(corpus, tokenizer)

    @staticmethod
    def texts_of(corpus: ParallelCorpus) -> Sequence[Pair]:
        return corpus.train

    def save_for_tools(self, folder: Path, recipe: TranslationRecipe) -> None:
        """A target vocabulary of its own has its tokenizer in a folder `target` inside."""
        config = self.model_config(recipe.model)
        source = deepcopy(self.tokenizer.source.tokenizer)
        if config.max_positions is not None:
            source.model_max_length = config.max_positions
        source.save_pretrained(folder)
        if not self.tokenizer.is_joint:
            self.tokenizer.target.tokenizer.save_pretrained(folder / "target")
        generation_config(recipe.evaluation, config).save_pretrained(folder)

    @classmethod
    def nominal_config(cls, recipe: TranslationRecipe) -> Seq2SeqLMConfig:
        """Takes vocabularies of their largest size; a small corpus gives fewer subwords."""
        tokenizer = recipe.tokenizer
        if tokenizer.pretrained is not None:
            size = cls.ready_made(tokenizer).source.vocab_size
            return recipe.model.config(vocab_size=size)
        return recipe.model.config(
            vocab_size=tokenizer.source_vocab_size or tokenizer.vocab_size,
            target_vocab_size=tokenizer.target_vocab_size or tokenizer.vocab_size,
            joint=tokenizer.joint,
        )

    def model_config(self, settings: TranslationModel) -> Seq2SeqLMConfig:
        tokenizer = self.tokenizer
        return settings.config(
            vocab_size=tokenizer.source.vocab_size,
            target_vocab_size=tokenizer.target.vocab_size,
            joint=tokenizer.is_joint,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )

    def collate(self, items: list[TokenItem]) -> dict[str, Tensor]:
        return collate_tokens(items, self.tokenizer.pad_token_id)

    def positions(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """The decoder reads the labels as its model shifts them, behind `<bos>`."""
        tokenizer = self.tokenizer
        labels, padding = batch["labels"], tokenizer.pad_token_id
        read = shift_right(labels, tokenizer.bos_token_id, padding)
        read = read.masked_fill(labels == IGNORED_LABEL, padding)
        return {
            "encoder": Positions.of_tokens(batch["input_ids"], tokenizer.source.names, "subword"),
            "decoder": Positions.of_tokens(read, tokenizer.target.names, "subword"),
        }

    def decode(self, model: HeadwiseModel, evaluation: TranslationEvaluation) -> int:
        """Translates some sentences of the test part by the recipe's search.

        Each translation gets the same number of tokens, whatever the model would say.
        """
        assert isinstance(model, Seq2SeqLM)
        texts = [pair.source for pair in spread(self.corpus.test, _DECODED)]
        length = min(_DECODED_TOKENS, model.config.max_positions or _DECODED_TOKENS)
        return write_tokens(model, self.tokenizer, texts, evaluation, length)

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: TranslationEvaluation,
        advance: Advance,
    ) -> Outcome:
        """Translates a part, and scores the translations by BLEU and chrF."""
        assert isinstance(model, Seq2SeqLM) and isinstance(part, TranslationDataset)
        sources = [pair.source for pair in part.pairs]
        references = [self.tokenizer.target.join(pair.target) for pair in part.pairs]
        translations = translate(
            model, self.tokenizer, sources, evaluation, advance=advance, shared=True
        )
        language = self.corpus.target_language
        scored = corpus_scores(translations, references, evaluation, language=language)
        sources = [self.tokenizer.source.join(source) for source in sources]
        samples = [
            Sample(given={"Source": sources[i], "Reference": references[i]}, made=translations[i])
            for i in _worth_showing(sources)
        ]
        return Outcome.of(scored, outputs=translations, samples=samples)

    @classmethod
    def statistic(cls, name: str, evaluation: TranslationEvaluation) -> Statistic:
        return corpus_statistic(name, evaluation)

    @classmethod
    def predict(
        cls, run: Path, recipe: TranslationRecipe, model: HeadwiseModel, wish: Wish
    ) -> None:
        """Prints the translation of each line."""
        assert isinstance(model, Seq2SeqLM)
        wish.refuse(recipe.task, number=ONE_EACH, output=PRINTED)
        tokenizer = TranslationTokenizer.load(run / TOKENIZER)
        for line in translate(model, tokenizer, wish.lines(), recipe.evaluation):
            wish.echo(line)


def _worth_showing(sources: Sequence[str]) -> Sequence[int]:
    """Returns the indices of the sentences to show: of at least four words, evenly spread."""
    return spread([i for i, source in enumerate(sources) if len(source.split()) >= 4], _SAMPLES)
