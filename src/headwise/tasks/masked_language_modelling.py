"""Masked language modelling: packed text, an encoder, the perplexity of the words that are hidden.

Its pieces are in files of their own: texts (`text.texts`), vocabularies (`text.tokenization`),
packing and masks (`text.masking`). What it trains is where `tasks.classification` may start from.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from headwise.models.base import HeadwiseModel
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipe.settings import EvaluationSettings, LanguageModelSettings
from headwise.tasks.outcome import Outcome, Sample, Score, spread
from headwise.tasks.parts import PARTS, Part
from headwise.tasks.sources import CorpusError
from headwise.tasks.task import Advance, Items
from headwise.tasks.text.encoded import Ragged, pad, token_mask
from headwise.tasks.text.masking import (
    DynamicallyMaskedBlocks,
    MaskedBlocks,
    MaskedItem,
    MaskingSettings,
    pack_sentences,
)
from headwise.tasks.text.text_task import RunningTextRecipe, RunningTextTask, perplexity
from headwise.tasks.text.texts import Texts, lines_of
from headwise.tasks.text.tokenization import TextTokenizer
from headwise.training.batching import TokenBudgetSampler

_BATCH_TOKENS = 4096  # of evaluation
_SAMPLES = 12
_SAMPLE_TOKENS = 48  # of a line, at most and at least
_SAMPLE_LEAST = 6


class MaskedModel(LanguageModelSettings):
    """Sizes of the encoder."""

    def config(self, **encoding: Any) -> MaskedLMConfig:
        return MaskedLMConfig(**self.model_dump(), **encoding)


class MaskedEvaluation(EvaluationSettings):
    """How often the test part is read."""

    draws: int = Field(
        1,
        ge=1,
        description="how often the masks of each test sequence are drawn: with more of them the "
        "scores of a small test part become steadier",
    )


class MaskedRecipe(RunningTextRecipe):
    """Which text to learn, how it is hidden, and with what it is predicted."""

    task: Literal["masked-language-modelling"] = Field(
        "masked-language-modelling", description="what is learned"
    )
    block_length: int = Field(
        512, ge=8, description="most tokens of a sequence; full lines are packed into it"
    )
    masking: MaskingSettings = Field(
        default_factory=lambda: MaskingSettings(), description="what is hidden, and how"
    )
    model: MaskedModel = Field(
        default_factory=lambda: MaskedModel(), description="sizes and attention"
    )
    evaluation: MaskedEvaluation = Field(
        default_factory=lambda: MaskedEvaluation(), description="how the test part is scored"
    )


class MaskedLanguageModelling(RunningTextTask):
    """Text in packed blocks some of whose words are hidden.

    Each block begins with `<bos>`; each line ends with `<eos>`, and one more stands between two
    documents. The training part's masks are drawn anew in each epoch; those of the validation and
    the test part are fixed, and the same for all systems.

    Args:
        texts: documents in three parts.
        tokenizer: of their language.
        block_length: most tokens of a block.
        masking: what is hidden, and how.
    """

    recipe_class = MaskedRecipe
    model_class = MaskedLM
    item_name = "sequences"
    macs_lengths = {"encoder": 128}  # noqa: RUF012  # that of the MoA paper's table 2

    def __init__(
        self, texts: Texts, tokenizer: TextTokenizer, block_length: int, masking: MaskingSettings
    ) -> None:
        super().__init__(texts, tokenizer, block_length)
        self.masking = masking
        self.train = self._blocks("train", DynamicallyMaskedBlocks, 0)
        self.validation = self._blocks("validation", MaskedBlocks, 1)
        self.test = self._blocks("test", MaskedBlocks, 2)
        counts = ", ".join(f"{len(getattr(self, part)):,} {part}" for part in PARTS)
        self.notes["sequences"] = f"{counts}, of at most {block_length} tokens"
        self.note_unknown(self.test.ids)

    @classmethod
    def from_texts(cls, texts: Texts, tokenizer: TextTokenizer, recipe: MaskedRecipe) -> Self:
        return cls(texts, tokenizer, recipe.block_length, recipe.masking)

    def token_ids(self) -> dict[str, int]:
        return super().token_ids() | {"mask_token_id": self.tokenizer.mask_token_id}

    def collate(self, items: list[MaskedItem]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `labels`, all `(batch, time)`."""
        read = [item["input_ids"] for item in items]
        return {
            "input_ids": pad(read, self.tokenizer.pad_token_id),
            "attention_mask": token_mask(read),
            "labels": pad([item["labels"] for item in items], IGNORED_LABEL),
        }

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: MaskedEvaluation,
        advance: Advance,
    ) -> Outcome:
        """Perplexity and accuracy over all tokens that are to be predicted.

        These are the chosen 15%, whatever stands in their place, as in the papers. An item is a
        sequence: the sum of its negative log-likelihoods, how many tokens, how many are right.
        """
        assert isinstance(model, MaskedLM) and isinstance(part, MaskedBlocks)
        items = np.zeros((len(part), 3))
        shown = spread(range(len(part)), _SAMPLES)
        samples: dict[int, Sample] = {}
        budget = max(_BATCH_TOKENS, *part.lengths)
        for batch in TokenBudgetSampler(part.lengths, budget, shuffle=False):
            for draw in range(evaluation.draws):
                drawn = [part.draw(index, draw) for index in batch]
                predictions = self._predict(model, drawn)
                for index, item, (nll, predicted) in zip(batch, drawn, predictions, strict=True):
                    hidden = [token for token in item["labels"] if token != IGNORED_LABEL]
                    right = sum(map(int.__eq__, predicted, hidden))
                    items[index] += (nll, len(hidden), right)
                    if draw == 0 and index in shown:
                        sample = show(self.tokenizer, item, predicted)
                        samples |= {index: sample} if sample else {}
            advance(len(batch))
        count = f"{int(items[:, 1].sum()):,} hidden tokens in {len(part):,} sequences"
        scores = [
            Score.of(
                "perplexity", items, self.statistic, higher_is_better=False, digits=2, note=count
            ),
            Score.of("accuracy", items, _accuracy, note=f"percent of {count}"),
        ]
        shown_samples = [samples[index] for index in sorted(samples)]
        return Outcome(scores=scores, items=items.tolist(), samples=shown_samples)

    def statistic(self, items: np.ndarray) -> float:
        """Perplexity: the exponential of the mean negative log-likelihood of a hidden token."""
        nll, count = items[:, 0].sum(), items[:, 1].sum()
        return perplexity(nll, count)

    def _predict(self, model: MaskedLM, items: list[MaskedItem]) -> list[tuple[float, list[int]]]:
        """Per sequence its negative log-likelihood, and what is most probable at each label."""
        batch = {name: tensor.to(model.device) for name, tensor in self.collate(items).items()}
        labels = batch["labels"]
        with torch.no_grad():
            log_p = model(**batch).logits.double().log_softmax(-1)  # (tokens, vocabulary)
        counts = (labels != IGNORED_LABEL).sum(1).tolist()
        nll = -log_p.gather(1, labels[labels != IGNORED_LABEL].unsqueeze(1)).squeeze(1)
        rows = zip(nll.split(counts), log_p.argmax(-1).split(counts), strict=True)
        return [(float(row.sum()), best.tolist()) for row, best in rows]

    def _blocks(self, part: Part, kind: type[MaskedBlocks], stream: int) -> MaskedBlocks:
        lines: list[str] = []
        for document in getattr(self.texts, part):
            # A blank line is encoded as <eos> alone: what stands between two documents.
            lines += ["", *lines_of([document])]
        encoded = Ragged(self.tokenizer.encode, lines)
        tokenizer = self.tokenizer
        special = torch.tensor(tokenizer.tokenizer.all_special_ids)
        # A block of nothing but <unk> has nothing to predict.
        blocks = [
            (start, end)
            for start, end in pack_sentences(encoded.lengths, self.block_length - 1)  # and <bos>
            if not torch.isin(encoded.ids[start:end], special).all()
        ]
        if not blocks:
            raise CorpusError(
                f"{self.texts.notes['corpus']}: the {part} part has no word that could be hidden, "
                "all of them are <unk>. Give text of the same language and tokenisation in all "
                "parts, a larger tokenizer.vocab_size or a smaller tokenizer.min_frequency."
            )
        return kind(
            encoded.ids,
            blocks,
            self.masking,
            bos_id=tokenizer.bos_token_id,
            mask_id=tokenizer.mask_token_id,
            special_ids=tokenizer.tokenizer.all_special_ids,
            vocab_size=tokenizer.vocab_size,
            stream=stream,
        )


def _accuracy(items: np.ndarray) -> float:
    count = items[:, 1].sum()
    return float(100 * items[:, 2].sum() / count) if count else math.nan


def show(tokenizer: TextTokenizer, item: MaskedItem, predicted: Sequence[int]) -> Sample | None:
    """A line of a block as it was read, as it is and as predicted; what was chosen is in brackets.

    Args:
        tokenizer: of the text.
        item: a block.
        predicted: a token for each label of the block.

    Returns:
        The block's first line with something to predict, cut where it is long; None without any.
    """
    guesses = iter(predicted)
    columns: list[tuple[int, int, int | None]] = [  # read, true, predicted
        (read, read, None) if label == IGNORED_LABEL else (read, label, next(guesses))
        for read, label in zip(item["input_ids"], item["labels"], strict=True)
    ]
    ends = [i for i, (_, token, _) in enumerate(columns) if token == tokenizer.eos_token_id]
    starts = [1, *(end + 1 for end in ends)]  # behind <bos>
    for start, end in zip(starts, [*ends, len(columns)], strict=True):
        line = columns[start : min(end, start + _SAMPLE_TOKENS)]
        if len(line) >= _SAMPLE_LEAST and any(guess is not None for *_, guess in line):
            sample = _show_line(tokenizer, line)
            if "\ufffd" not in sample.given["Text"]:  # else a bracket divides a character's bytes
                return sample
    return None


def _show_line(tokenizer: TextTokenizer, line: Sequence[tuple[int, int, int | None]]) -> Sample:
    masked = text = made = ""
    before: list[int] = []
    for is_kept, columns in groupby(line, key=lambda column: column[2] is None):
        run = list(columns)
        if is_kept:
            tokens = [token for _, token, _ in run]
            piece = _piece(tokenizer, before, tokens)
            masked, text, made = masked + piece, text + piece, made + piece
            before += tokens
            continue
        for read, token, guess in run:
            assert guess is not None
            piece, hidden, filled = (_piece(tokenizer, before, [t]) for t in (token, read, guess))
            if read == tokenizer.mask_token_id:  # <mask> where the hidden token begins
                hidden = piece[: len(piece) - len(piece.lstrip())] + hidden.strip()
            masked, text, made = (
                shown + _bracket(piece)
                for shown, piece in ((masked, hidden), (text, piece), (made, filled))
            )
            before.append(token)
    return Sample(given={"Masked": masked, "Text": text}, made=made)


def _piece(tokenizer: TextTokenizer, before: list[int], tokens: list[int]) -> str:
    """What tokens add to the text before them, white space included."""
    if tokens[0] in tokenizer.tokenizer.all_special_ids:
        return " " + tokenizer.tokenizer.convert_ids_to_tokens(tokens[0])
    shorter, longer = tokenizer.decode([before, before + tokens])
    return longer[len(shorter) :]


def _bracket(piece: str) -> str:
    """
    >>> _bracket(" word")
    ' [word]'
    """
    word = piece.lstrip()
    return f"{piece[: len(piece) - len(word)]}[{word}]"
