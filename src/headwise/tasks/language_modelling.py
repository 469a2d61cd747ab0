r"""Language modelling: running text, a decoder, perplexity over a sliding window.

The text of a part is one stream of tokens, with a line end (`<eos>`) after each line and one before
the first. For training it is cut into blocks. Every token is predicted once; the first of a block
is predicted from the last of the block before.

At evaluation a window moves over the stream by `block_length - context` tokens, and only its new
tokens are scored. So every token is predicted once, with at least `context` tokens before it
(Baevski and Auli 2019, *Adaptive Input Representations for Neural Language Modeling*,
https://arxiv.org/abs/1809.10853; they evaluate blocks of 512 with 480 tokens of context). The word
perplexity is

    exp(Σ −log p(token | tokens before it) / (words + line ends)),

where white space divides words, whatever the subwords are. Line ends count, also those of blank
lines, as in published figures for WikiText: its test part of 241,211 words in 4,358 lines is known
as one of 245,569 tokens. With a vocabulary of words it is the ordinary perplexity. All unknown
words are one token there, so it is comparable with that of subwords only if there are none.
"""

import math
from collections.abc import Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from headwise.data.running.corpus import TextCorpus
from headwise.data.running.dataset import TextBlocks, collate_blocks
from headwise.data.running.documents import lines_of
from headwise.data.tokenizers.for_models import language_model_tokenizer
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer
from headwise.models.config import CausalLMConfig
from headwise.models.for_tasks import CausalLM
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.settings import EvaluationSettings, LanguageModelSettings
from headwise.tasks.generating import (
    GenerationSettings,
    generate_text,
    generation_config,
    write_tokens,
)
from headwise.tasks.outcome import Outcome, Sample, Score, spread
from headwise.tasks.positions import Positions
from headwise.tasks.significance import Statistic, of_totals
from headwise.tasks.task import PRINTED, Advance, Items, Wish
from headwise.tasks.text_task import PERPLEXITY, RunningTextRecipe, RunningTextTask
from headwise.training.processes import divided

_STATISTICS = {  # of the nats of each block and the number of its words, tokens or bytes
    "word perplexity": PERPLEXITY,
    "token perplexity": PERPLEXITY,
    "bits per byte": of_totals(lambda totals: totals[0] / totals[1] / math.log(2)),
}
_DECODED_TOKENS = 48  # length of the text that measures the speed of decoding
_LOGITS = 2**26  # largest number of logits at once in evaluation: 256 MB


# --- settings ---------------------------------------------------------------------------------


class LanguageModel(LanguageModelSettings):
    """Settings of the decoder."""

    config_class = CausalLMConfig

    adaptive_cutoffs: list[int] | None = None
    """Cutoffs of adaptive embeddings and softmax: tokens up to the first number, the most frequent
    ones, have the full width, tokens up to the next number a width that is adaptive_factor times
    smaller, and so on. Default: all have the full width."""
    adaptive_factor: int = Field(4, ge=1, le=1024)
    """Factor by which each band of adaptive_cutoffs is narrower than the last."""
    adaptive_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout inside the adaptive softmax, on its input and its bands."""

    def config(self, **encoding: Any) -> Any:
        if self.adaptive_cutoffs and "vocab_size" not in encoding:
            encoding["vocab_size"] = max(self.adaptive_cutoffs) + 1
        return super().config(**encoding)


class LanguageEvaluation(EvaluationSettings):
    """Settings of the evaluation: context of the scores, and generated text."""

    context: int | None = Field(None, ge=0, le=10_000_000)
    """Every scored token has at least this many tokens of context, except at the start of the text.
    It must be less than block_length; by default it is half of it."""
    samples: int = Field(12, ge=0, le=1_000_000)
    """Number of lines of the test part that the model continues."""
    generation: GenerationSettings = Field(default_factory=lambda: GenerationSettings())
    """Settings of generated text; samples always end with their line."""


class LanguageModellingRecipe(RunningTextRecipe):
    """The recipe of a language model: data, vocabulary, blocks, model, training and scores."""

    task: Literal["language-modelling"] = "language-modelling"
    """Selects language modelling."""
    model: LanguageModel = Field(default_factory=lambda: LanguageModel())
    """Sizes and attention of the model."""
    evaluation: LanguageEvaluation = Field(default_factory=lambda: LanguageEvaluation())
    """How the test part is scored, and how many samples are generated."""

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        context = self.evaluation.context
        if context is not None and context >= self.block_length:
            raise ValueError(
                f"evaluation.context is {context}, expected less than block_length, "
                f"{self.block_length}: a block holds the context and at least one token to predict"
            )
        return self


# --- evaluation -------------------------------------------------------------------------------


def token_losses(
    model: CausalLM,
    stream: Tensor,
    block_length: int,
    context: int,
    batch_tokens: int = 8192,
    advance: Advance = lambda count: None,
) -> list[Tensor]:
    """Returns the negative log-likelihood, in nats, of each token of a stream after the first.

    The processes of a data-parallel run compute a share of the batches each.

    Args:
        model: model in evaluation mode.
        stream: tokens, of shape `(tokens + 1,)`.
        block_length: number of tokens of a window.
        context: smallest number of tokens from which one is predicted, except at the start of the
            stream; less than `block_length`.
        batch_tokens: number of tokens that the model reads at once.
        advance: is called with the number of tokens whose losses have just been computed.

    Returns:
        The losses of each batch of windows, in the order of the stream.
    """
    stride = block_length - context
    tokens = len(stream) - 1
    # Token `begin + 1` of the stream is the first that a window predicts.
    windows = [
        (max(0, begin - context), begin, min(begin + stride, tokens))
        for begin in range(0, tokens, stride)
    ]
    batches = []
    for (length, predicted), group in groupby(
        windows, lambda window: (window[2] - window[0], window[2] - window[1])
    ):
        same = list(group)
        logits = (predicted + 1) * model.config.vocab_size
        rows = max(1, min(batch_tokens // length, _LOGITS // logits))
        batches += [same[first : first + rows] for first in range(0, len(same), rows)]

    def losses(same: list[tuple[int, int, int]]) -> Tensor:
        predicted = same[0][2] - same[0][1]
        batch = torch.stack([stream[a : z + 1] for a, _, z in same])
        batch = batch.long().to(model.device)  # (windows, context + predicted + 1)
        with torch.no_grad():
            logits_of_last = model(input_ids=batch, logits_to_keep=predicted + 1).logits
        found = F.cross_entropy(
            logits_of_last[:, :-1].flatten(0, 1).float(),
            batch[:, -predicted:].flatten(),
            reduction="none",
        )
        return found.double().cpu()

    return divided(batches, losses, lambda same: advance(same[-1][2] - same[0][1]))


# --- the task ---------------------------------------------------------------------------------


class LanguageModelling(RunningTextTask):
    """Language modelling of a text corpus, in blocks of `block_length` predicted tokens."""

    recipe_class = LanguageModellingRecipe
    model_class = CausalLM
    item_name = "blocks"
    pipeline = "text-generation"

    def __init__(self, corpus: TextCorpus, tokenizer: TextTokenizer, block_length: int) -> None:
        super().__init__(corpus, tokenizer, block_length)
        self.encode_parts(partial(TextBlocks, tokenizer=tokenizer, block_length=block_length))
        assert isinstance(self.test, TextBlocks)
        self.note_unknown(self.test.stream)

    def save_for_tools(self, folder: Path, recipe: LanguageModellingRecipe) -> None:
        tokenizer = self.tokenizer
        language_model_tokenizer(tokenizer.tokenizer, self.block_length).save_pretrained(folder)
        settings = recipe.evaluation.generation
        how = generation_config(settings, tokenizer.pad_token_id, tokenizer.eos_token_id)
        how.save_pretrained(folder)

    @classmethod
    def cost_lengths(cls, recipe: LanguageModellingRecipe) -> dict[str, int]:
        return {"decoder": recipe.block_length}

    def longest_input(self) -> int:
        return self.block_length + 1  # a block has the token before it in front

    def collate(self, items: list[Tensor]) -> dict[str, Tensor]:
        return collate_blocks(items, self.tokenizer.pad_token_id)

    def positions(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        return {"decoder": self.tokens(batch["input_ids"])}

    def decode(self, model: HeadwiseModel, evaluation: LanguageEvaluation) -> int:
        """Writes one text, with the recipe's sampling."""
        assert isinstance(model, CausalLM)
        return write_tokens(model, self.tokenizer, evaluation.generation, _DECODED_TOKENS)

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: LanguageEvaluation,
        advance: Advance,
    ) -> Outcome:
        """Computes the perplexity of a part, and has the model continue some of its lines."""
        assert isinstance(model, CausalLM) and isinstance(part, TextBlocks)
        context = evaluation.context
        if context is None:
            context = self.block_length // 2
        tokens = 0

        def advance_tokens(count: int) -> None:
            nonlocal tokens
            tokens += count
            ends = [before // self.block_length for before in (tokens - count, tokens)]
            if tokens == part.lengths.sum():
                ends[1] = len(part)
            advance(ends[1] - ends[0])

        losses = torch.cat(
            token_losses(model, part.stream, self.block_length, context, advance=advance_tokens)
        )
        return Outcome.of(
            self._scores(losses, part), samples=self._samples(model, part, evaluation)
        )

    def _scores(self, losses: Tensor, part: TextBlocks) -> list[tuple[Score, np.ndarray]]:
        """Returns the scores, each with its items: nats of each block, and what they are over."""
        counts = {"word perplexity": (part.words(), "words and line ends")}
        if not self.tokenizer.has_words:  # of words, both perplexities are the same
            counts["token perplexity"] = (torch.ones_like(losses), "subwords and line ends")
            # The bytes of <unk> are not known, which a piece of a word may be.
            if not self.tokenizer.is_unknown(part.stream).any():
                counts["bits per byte"] = (part.utf8_bytes(), "bytes of UTF-8")
        scored = []
        for name, (per_token, unit) in counts.items():
            columns = [_per_block(figures, part.lengths) for figures in (losses, per_token)]
            rows = torch.stack(columns, dim=1).numpy()
            score = Score.of(
                name,
                rows,
                _STATISTICS[name],
                higher_is_better=False,
                digits=3 if name == "bits per byte" else 1,
                note=f"over {round(rows[:, 1].sum()):,} {unit}",
                is_perplexity=name != "bits per byte",
            )
            scored.append((score, rows))
        return scored

    def _samples(
        self, model: CausalLM, part: TextBlocks, evaluation: LanguageEvaluation
    ) -> list[Sample]:
        """Has the model continue the first halves of lines that are spread over the part."""
        lines = [line for line in lines_of(part.documents) if len(line.split()) >= 8]
        halves = []
        for line in spread(lines, evaluation.samples):
            words = line.split()
            middle = min(len(words) // 2, 32)
            halves.append((" ".join(words[:middle]), " ".join(words[middle:])))
        prompts = [prompt for prompt, _ in halves]
        settings = evaluation.generation.model_copy(update={"lines": 1})
        texts = divided(
            prompts, lambda prompt: generate_text(model, self.tokenizer, [prompt], settings)[0]
        )
        join = self.tokenizer.join
        return [
            Sample(given={"Prompt": join(prompt), "Text": join(rest)}, made=text.strip())
            for (prompt, rest), text in zip(halves, texts, strict=True)
        ]

    @classmethod
    def statistic(cls, name: str, evaluation: LanguageEvaluation) -> Statistic:
        return _STATISTICS[name]

    @classmethod
    def predict(
        cls, run: Path, recipe: LanguageModellingRecipe, model: HeadwiseModel, wish: Wish
    ) -> None:
        """Prints continuations of prompts; each of a prompt's texts has a seed of its own."""
        assert isinstance(model, CausalLM)
        wish.refuse(recipe.task, output=PRINTED)
        tokenizer = TextTokenizer.load(run / TOKENIZER)
        prompts = wish.lines(default=[""])
        settings = recipe.evaluation.generation
        for i in range(1 if wish.number is None else wish.number):
            drawn = settings.model_copy(update={"seed": settings.seed + i})
            texts = generate_text(model, tokenizer, prompts, drawn)
            for prompt, text in zip(prompts, texts, strict=True):
                wish.echo((prompt + text).removesuffix("\n"))


def _per_block(figures: Tensor, lengths: np.ndarray) -> Tensor:
    """Sums numbers per token over each block."""
    return torch.stack([block.sum() for block in figures.split(lengths.tolist())])
