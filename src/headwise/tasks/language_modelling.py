r"""Language modelling: running text, a decoder, perplexity over a sliding window.

The text of a part is one stream of tokens, a line end (``<eos>``) behind each line and one in front
of the first. For training it is cut into blocks; every token is predicted once, the first of a
block from the last of the block before.

At evaluation the stream is walked through with a window that moves by `block_length - context`
tokens, of which those that are new are scored: every token is predicted once, with at least
`context` tokens before it (Baevski and Auli 2019, *Adaptive Input Representations for Neural
Language Modeling*, https://arxiv.org/abs/1809.10853; they and the MAE paper evaluate blocks of 512
with 480 tokens of context). The word perplexity is

    exp(Σ −log p(token | tokens before it) / (words + line ends)),

with words as white space divides them, whatever the subwords. Line ends count, those of blank
lines too, as in published figures for WikiText: its test part of 241,211 words in 4,358 lines is
known as one of 245,569 tokens. With a vocabulary of words it is the ordinary perplexity; all
unknown words are one token there, so it compares to that of subwords only where there are none.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import Self

from headwise.models.base import HeadwiseModel
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipe.settings import EvaluationSettings, LanguageModelSettings
from headwise.tasks.outcome import Outcome, Sample, Score, spread
from headwise.tasks.parts import PARTS
from headwise.tasks.task import Advance, Items
from headwise.tasks.text.encoded import Ragged, pad, token_mask
from headwise.tasks.text.generating import GenerationSettings, generate_text
from headwise.tasks.text.text_task import RunningTextRecipe, RunningTextTask, perplexity
from headwise.tasks.text.texts import Document, Texts, lines_of
from headwise.tasks.text.tokenization import TextTokenizer

_LOGITS = 2**26  # at once, in evaluation: 256 MB


# --- settings ---------------------------------------------------------------------------------


class LanguageModel(LanguageModelSettings):
    """Sizes of the decoder."""

    adaptive_cutoffs: list[int] | None = Field(
        None,
        description="adaptive embeddings and softmax: the frequent tokens up to the first number "
        "have full width, those up to the next a factor less, and so on; default: all are full",
    )
    adaptive_factor: int = Field(
        4, ge=1, description="for adaptive_cutoffs: how much narrower each band is than the last"
    )
    adaptive_dropout: float = Field(
        0.0, ge=0, lt=1, description="inside the adaptive softmax, of its input and its bands"
    )

    def config(self, **encoding: Any) -> CausalLMConfig:
        if self.adaptive_cutoffs and "vocab_size" not in encoding:
            encoding["vocab_size"] = max(self.adaptive_cutoffs) + 1
        return CausalLMConfig(**self.model_dump(), **encoding)


class LanguageEvaluation(EvaluationSettings):
    """How a language model is scored, and what it is asked to write."""

    context: int | None = Field(
        None,
        ge=0,
        description="least number of tokens before each that is scored, at the start of the text "
        "apart; less than block_length, by default half of it",
    )
    samples: int = Field(12, ge=0, description="lines of the test part that the model continues")
    generation: GenerationSettings = Field(
        default_factory=lambda: GenerationSettings(),
        description="how text is written; samples end with their line whatever it says",
    )


class LanguageModellingRecipe(RunningTextRecipe):
    """What text to model, in what pieces, with what."""

    task: Literal["language-modelling"] = Field("language-modelling", description="what is learned")
    model: LanguageModel = Field(
        default_factory=lambda: LanguageModel(), description="sizes and attention"
    )
    evaluation: LanguageEvaluation = Field(
        default_factory=lambda: LanguageEvaluation(), description="context and samples"
    )

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        context = self.evaluation.context
        if context is not None and context >= self.block_length:
            raise ValueError(
                f"evaluation.context is {context}, but block_length is {self.block_length}: the "
                f"context must leave room for a token to predict"
            )
        return self


# --- data -------------------------------------------------------------------------------------


class TextBlocks(Dataset[Tensor]):
    """A text as one stream of tokens, and its blocks.

    Args:
        documents: the text.
        tokenizer: encodes its lines.
        block_length: tokens predicted in a block.

    Attributes:
        documents: as given.
        stream: ``(tokens + 1,)``, an ``<eos>`` in front of all tokens of the text.
        block_length: as given.
        lengths: tokens predicted in each block; all but the last have `block_length`.

    Item `i` is the stretch of the stream that a block takes: the token before it and its own.
    """

    def __init__(
        self, documents: Sequence[Document], tokenizer: TextTokenizer, block_length: int
    ) -> None:
        self.documents = documents
        self.block_length = block_length
        lines = Ragged(tokenizer.encode, list(chain.from_iterable(documents)))
        self._tokens_of_lines = lines.lengths
        start = torch.tensor([tokenizer.eos_token_id], dtype=torch.int32)
        self.stream = torch.cat([start, lines.ids])
        tokens = len(lines.ids)
        self.lengths = [
            min(block_length, tokens - begin) for begin in range(0, tokens, block_length)
        ]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} blocks")
        begin = index * self.block_length
        return self.stream[begin : begin + self.block_length + 1].long()

    def words(self) -> Tensor:
        """Words, line ends among them, per token ``(tokens,)``: those of a line in equal shares."""
        counts = [len(line.split()) + 1 for line in chain.from_iterable(self.documents)]
        tokens = torch.tensor(self._tokens_of_lines)
        return (torch.tensor(counts, dtype=torch.float64) / tokens).repeat_interleave(tokens)

    def num_bytes(self) -> int:
        """Of the text in UTF-8, a byte for each line end."""
        return sum(len(line.encode()) + 1 for line in chain.from_iterable(self.documents))


def collate_blocks(items: Sequence[Tensor], pad_token_id: int) -> dict[str, Tensor]:
    """A batch of blocks.

    Returns:
        ``input_ids`` and ``labels`` ``(batch, time)``, the same tokens; labels are -100 at the
        first position, which nothing predicts, and at padding. Only a batch with padding has an
        ``attention_mask``, 1 for text.

    Example:
        >>> batch = collate_blocks([torch.tensor([2, 7, 8]), torch.tensor([2, 9])], 0)
        >>> batch["labels"]
        tensor([[-100,    7,    8],
                [-100,    9, -100]])
    """
    rows = [item.tolist() for item in items]
    batch = {
        "input_ids": pad(rows, pad_token_id),
        "labels": pad([[IGNORED_LABEL, *row[1:]] for row in rows], IGNORED_LABEL),
    }
    if len({len(row) for row in rows}) > 1:
        batch["attention_mask"] = token_mask(rows)
    return batch


# --- evaluation -------------------------------------------------------------------------------


def token_losses(
    model: CausalLM,
    stream: Tensor,
    block_length: int,
    context: int,
    batch_tokens: int = 8192,
) -> Iterator[Tensor]:
    """Negative log-likelihood of each token of a stream behind the first, in nats.

    Args:
        model: in evaluation.
        stream: ``(tokens + 1,)``.
        block_length: tokens of which the last is predicted from all others; those before it from
            the fewer that stand before them, but at least `context`.
        context: less than `block_length`.
        batch_tokens: tokens read at once.

    Yields:
        The losses of one batch of windows after the other, ``(some tokens,)``, in the order of
        the stream.
    """
    stride = block_length - context
    tokens = len(stream) - 1
    # Token `begin + 1` of the stream is the first that a window predicts.
    windows = [
        (max(0, begin - context), begin, min(begin + stride, tokens))
        for begin in range(0, tokens, stride)
    ]
    for (length, predicted), group in groupby(
        windows, lambda window: (window[2] - window[0], window[2] - window[1])
    ):
        same = list(group)
        logits = (predicted + 1) * model.config.vocab_size
        rows = max(1, min(batch_tokens // length, _LOGITS // logits))
        for first in range(0, len(same), rows):
            batch = torch.stack([stream[a : z + 1] for a, _, z in same[first : first + rows]])
            batch = batch.long().to(model.device)  # (windows, context + predicted + 1)
            with torch.no_grad():
                logits_of_last = model(input_ids=batch, logits_to_keep=predicted + 1).logits
            losses = F.cross_entropy(
                logits_of_last[:, :-1].flatten(0, 1).float(),
                batch[:, -predicted:].flatten(),
                reduction="none",
            )
            yield losses.double().cpu()


# --- the task ---------------------------------------------------------------------------------


class LanguageModelling(RunningTextTask):
    """Texts, encoded.

    Args:
        texts: in three parts.
        tokenizer: of their language.
        block_length: tokens predicted in a block.
    """

    recipe_class = LanguageModellingRecipe
    model_class = CausalLM
    item_name = "blocks"

    def __init__(self, texts: Texts, tokenizer: TextTokenizer, block_length: int) -> None:
        super().__init__(texts, tokenizer, block_length)
        self.train, self.validation, self.test = (
            TextBlocks(getattr(texts, part), tokenizer, block_length) for part in PARTS
        )
        self.note_unknown(self.test.stream)

    @classmethod
    def cost_lengths(cls, recipe: LanguageModellingRecipe) -> dict[str, int]:
        return {"decoder": recipe.block_length}

    def collate(self, items: list[Tensor]) -> dict[str, Tensor]:
        return collate_blocks(items, self.tokenizer.pad_token_id)

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: LanguageEvaluation,
        advance: Advance,
    ) -> Outcome:
        """Perplexity of the part, and its lines as the model would have continued them."""
        assert isinstance(model, CausalLM) and isinstance(part, TextBlocks)
        context = evaluation.context
        if context is None:
            context = self.block_length // 2
        pieces = []
        tokens = blocks = 0
        for piece in token_losses(model, part.stream, self.block_length, context):
            pieces.append(piece)
            tokens += len(piece)
            whole = tokens // self.block_length if tokens < sum(part.lengths) else len(part)
            advance(whole - blocks)
            blocks = whole
        losses = torch.cat(pieces)
        items = torch.stack(
            [_per_block(losses, part.lengths), _per_block(part.words(), part.lengths)], dim=1
        ).tolist()
        return Outcome(
            scores=self._scores(losses, items, part),
            items=items,
            samples=self._samples(model, part, evaluation),
        )

    def _scores(self, losses: Tensor, items: list[list[float]], part: TextBlocks) -> list[Score]:
        words = round(sum(count for _, count in items))
        nats = losses.sum().item()
        scores = [
            Score.of(
                "word perplexity",
                items,
                self.statistic,
                higher_is_better=False,
                note=f"over {words:,} words and line ends",
            )
        ]
        if not self.tokenizer.has_words:  # else it is the same, and bytes of <unk> are lost
            scores += [
                Score(
                    name="token perplexity",
                    value=perplexity(nats, len(losses)),
                    higher_is_better=False,
                    note=f"over {len(losses):,} subwords and line ends",
                ),
                Score(
                    name="bits per byte",
                    value=nats / math.log(2) / part.num_bytes(),
                    higher_is_better=False,
                    digits=3,
                    note=f"over {part.num_bytes():,} bytes of UTF-8",
                ),
            ]
        return scores

    def _samples(
        self, model: CausalLM, part: TextBlocks, evaluation: LanguageEvaluation
    ) -> list[Sample]:
        """Lines spread over the part, cut in the middle."""
        lines = [line for line in lines_of(part.documents) if len(line.split()) >= 8]
        halves = []
        for line in spread(lines, evaluation.samples):
            words = line.split()
            middle = min(len(words) // 2, 32)
            halves.append((" ".join(words[:middle]), " ".join(words[middle:])))
        prompts = [prompt for prompt, _ in halves]
        settings = evaluation.generation.model_copy(update={"lines": 1})
        texts = generate_text(model, self.tokenizer, prompts, settings)
        return [
            Sample(given={"Prompt": prompt, "Text": rest}, made=text.strip())
            for (prompt, rest), text in zip(halves, texts, strict=True)
        ]

    def statistic(self, items: np.ndarray) -> float:
        """Word perplexity of blocks, `(blocks, (nats, words))`."""
        nats, words = items.sum(axis=0)
        return perplexity(nats, words)


def _per_block(figures: Tensor, lengths: Sequence[int]) -> Tensor:
    """Sums over blocks of figures per token."""
    return torch.stack([block.sum() for block in figures.split(list(lengths))])
