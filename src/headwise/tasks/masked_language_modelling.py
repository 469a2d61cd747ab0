"""Masked language modelling: packed text, an encoder, the perplexity of hidden words.

`tasks.classification` may start from the encoder of a finished run.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from headwise.data.division import PARTS
from headwise.data.encoded import TokenItem, collate_tokens
from headwise.data.running.corpus import TextCorpus
from headwise.data.running.dataset import MaskedBlocks, encoded_lines
from headwise.data.running.documents import Document
from headwise.data.running.masking import MaskingSettings, pack_sentences
from headwise.data.sources import CorpusError
from headwise.data.tokenizers.for_models import masked_model_tokenizer
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer
from headwise.messages import shown
from headwise.models.config import MaskedLMConfig
from headwise.models.for_tasks import MaskedLM
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.settings import EvaluationSettings, LanguageModelSettings
from headwise.tasks.outcome import Outcome, Sample, Score, spread
from headwise.tasks.positions import Positions
from headwise.tasks.significance import Statistic, of_totals
from headwise.tasks.task import ONE_EACH, PRINTED, Advance, Items, Wish
from headwise.tasks.text_task import (
    PERPLEXITY,
    RunningTextRecipe,
    RunningTextTask,
    streamed,
)
from headwise.training.batching import TokenBudgetSampler
from headwise.training.processes import divided

_BATCH_TOKENS = 4096  # tokens of a batch in evaluation
_SAMPLES = 12  # lines that a report shows
_SAMPLE_TOKENS = 48  # largest and smallest number of tokens of such a line
_SAMPLE_LEAST = 6


class MaskedModel(LanguageModelSettings):
    """Settings of the encoder."""

    config_class = MaskedLMConfig


class MaskedEvaluation(EvaluationSettings):
    """Settings of the evaluation."""

    draws: int = Field(1, ge=1, le=1_000_000)
    """How many times the masks of each test sequence are drawn; with more draws the scores of a
    small test part vary less."""


class MaskedRecipe(RunningTextRecipe):
    """The recipe of a masked language model: data, vocabulary, masks, model, training, scores."""

    task: Literal["masked-language-modelling"] = "masked-language-modelling"
    """Selects masked language modelling."""
    block_length: int = Field(512, ge=8, le=10_000_000)
    """Largest number of tokens of a sequence, into which full lines are packed."""
    masking: MaskingSettings = Field(default_factory=lambda: MaskingSettings())
    """Which tokens are hidden, and how."""
    model: MaskedModel = Field(default_factory=lambda: MaskedModel())
    """Sizes and attention of the model."""
    evaluation: MaskedEvaluation = Field(default_factory=lambda: MaskedEvaluation())
    """How the test part is scored."""


class MaskedLanguageModelling(RunningTextTask):
    """Masked language modelling of a text corpus in packed blocks.

    Each block begins with `<bos>`; each line ends with `<eos>`, and another `<eos>` separates two
    documents. The masks of the training part are drawn anew in each epoch. Those of the validation
    and the test part are fixed, and the same for all systems.
    """

    recipe_class = MaskedRecipe
    model_class = MaskedLM
    item_name = "sequences"
    pipeline = "fill-mask"
    evaluation_keys = ("data", "evaluation", "block_length", "masking")
    item_keys = ("tokenizer", "block_length", "masking")
    macs_lengths = {"encoder": 128}  # noqa: RUF012
    macs_lengths_from = "table 2 of Zhang et al. 2022"  # https://arxiv.org/abs/2210.05144

    def __init__(
        self,
        corpus: TextCorpus,
        tokenizer: TextTokenizer,
        block_length: int,
        masking: MaskingSettings,
    ) -> None:
        super().__init__(corpus, tokenizer, block_length)
        assert tokenizer.mask_token_id is not None
        self.mask_token_id = tokenizer.mask_token_id
        self.masking = masking
        train = partial(self._blocks, "train", stream=0, dynamic=True)
        self.train = streamed(corpus.train, train)
        self.validation = self._blocks("validation", corpus.validation, stream=1)
        self.test = self._blocks("test", corpus.test, stream=2)
        # Masks depend on seed and index alone, not on which other test sets there are.
        self.tests = {
            name: self._blocks(name, documents, stream=2)
            for name, documents in corpus.tests.items()
        }
        counted = PARTS[1:] if self.is_streamed else PARTS
        counts = ", ".join(f"{len(self.part(part)):,} {part}" for part in counted)
        self.notes["sequences"] = f"{counts}, of at most {block_length} tokens"
        self.note_unknown(self.test.ids.int())

    @classmethod
    def from_corpus(
        cls, corpus: TextCorpus, tokenizer: TextTokenizer, recipe: MaskedRecipe
    ) -> Self:
        return cls(corpus, tokenizer, recipe.block_length, recipe.masking)

    @classmethod
    def ready_made(cls, settings: TextTokenizerSettings) -> TextTokenizer:
        return TextTokenizer.ready_made(settings, mask=True)

    def digest_of(self, part: str) -> str:
        items = (super().digest_of(part), self.masking.model_dump_json())
        return hashlib.sha256("\0".join(items).encode()).hexdigest()

    def longest_input(self) -> int:
        return self.block_length if self.is_streamed else super().longest_input()

    def token_ids(self) -> dict[str, int]:
        return super().token_ids() | {"mask_token_id": self.mask_token_id}

    def save_for_tools(self, folder: Path, recipe: MaskedRecipe) -> None:
        tokenizer = masked_model_tokenizer(self.tokenizer.tokenizer, self.block_length)
        tokenizer.save_pretrained(folder)

    def collate(self, items: list[TokenItem]) -> dict[str, Tensor]:
        return collate_tokens(items, self.tokenizer.pad_token_id)

    def positions(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """The tokens that the model reads, most of the predicted ones masked."""
        read = batch["input_ids"]
        predicted = batch["labels"] != IGNORED_LABEL
        masked = predicted & (read == self.mask_token_id)
        # 0 where nothing is predicted, 1 at a mask, 2 where a predicted token is not masked.
        hidden = (2 * predicted.long() - masked.long(), ["not predicted", "masked", "shown"])
        return {"encoder": self.tokens(read, {"mask": hidden})}

    def evaluate(
        self,
        model: HeadwiseModel,
        part: Items,
        evaluation: MaskedEvaluation,
        advance: Advance,
    ) -> Outcome:
        """Computes perplexity and accuracy over all tokens that are predicted.

        As in the papers, these are all chosen tokens, whether they are masked, replaced or left.
        An item is a sequence: its summed negative log-likelihood, the number of predicted
        tokens, and the number of right predictions.
        """
        assert isinstance(model, MaskedLM) and isinstance(part, MaskedBlocks)
        shown = spread(range(len(part)), _SAMPLES)
        budget = max(_BATCH_TOKENS, int(part.lengths.max()))
        batches = list(TokenBudgetSampler(part.lengths, budget, shuffle=False))

        def score(batch: list[int]) -> tuple[np.ndarray, dict[int, Sample]]:
            rows, samples = np.zeros((len(batch), 3)), dict[int, Sample]()
            for draw in range(evaluation.draws):
                drawn = [part.draw(index, draw) for index in batch]
                predictions = self._predict(model, drawn)
                found = zip(batch, rows, drawn, predictions, strict=True)
                for index, row, item, (nll, predicted) in found:
                    hidden = [token for token in item["labels"] if token != IGNORED_LABEL]
                    row += (nll, len(hidden), sum(map(int.__eq__, predicted, hidden)))
                    if draw == 0 and index in shown:
                        sample = show(self.tokenizer, item, predicted)
                        samples |= {index: sample} if sample else {}
            return rows, samples

        items, samples = np.zeros((len(part), 3)), dict[int, Sample]()
        scored = divided(batches, score, lambda batch: advance(len(batch)))
        for batch, (rows, of_batch) in zip(batches, scored, strict=True):
            items[batch] = rows
            samples |= of_batch
        count = f"{int(items[:, 1].sum()):,} hidden tokens in {len(part):,} sequences"
        scores = [
            Score.of(
                "perplexity",
                items,
                PERPLEXITY,
                higher_is_better=False,
                digits=2,
                note=count,
                is_perplexity=True,
            ),
            Score.of("accuracy", items, _ACCURACY, note=f"percent of {count}"),
        ]
        shown_samples = [samples[index] for index in sorted(samples)]
        return Outcome.of([(score, items) for score in scores], samples=shown_samples)

    @classmethod
    def statistic(cls, name: str, evaluation: MaskedEvaluation) -> Statistic:
        return _ACCURACY if name == "accuracy" else PERPLEXITY

    @classmethod
    def predict(cls, run: Path, recipe: MaskedRecipe, model: HeadwiseModel, wish: Wish) -> None:
        """Prints each line with the likeliest token in the place of each `<mask>`."""
        wish.refuse(recipe.task, number=ONE_EACH, output=PRINTED)
        own = TextTokenizer.load(run / TOKENIZER)
        tokenizer = masked_model_tokenizer(own.tokenizer, recipe.block_length)
        for line in map(str.strip, wish.lines()):
            if line and tokenizer.mask_token not in line:
                raise ValueError(
                    f"INPUT has the line {shown(line)}, expected {tokenizer.mask_token} in the "
                    f"place of each token that the model is to find"
                )
            batch = tokenizer(line, return_tensors="pt", verbose=False).to(model.device)
            if (length := batch["input_ids"].size(1)) > recipe.block_length:
                raise ValueError(
                    f"INPUT has the line {shown(line)} of {length} tokens, expected at most "
                    f"{recipe.block_length}, the block_length of the run; divide the line"
                )
            with torch.no_grad():
                found = model(**batch).logits.argmax(-1)
            ids = batch["input_ids"]
            filled = torch.where(ids == tokenizer.mask_token_id, found, ids)[0]
            ends = (own.bos_token_id, own.eos_token_id)  # and no <unk>, which stands for a word
            wish.echo(own.decode_line([token for token in filled.tolist() if token not in ends]))

    def _predict(self, model: MaskedLM, items: list[TokenItem]) -> list[tuple[float, list[int]]]:
        """Returns the nats of each sequence, and the likeliest token of each of its labels."""
        batch = {name: tensor.to(model.device) for name, tensor in self.collate(items).items()}
        labels = batch["labels"]
        with torch.no_grad():
            of_labels = model(**batch, all_logits=False).logits
            log_p = of_labels.double().log_softmax(-1)  # (tokens, vocabulary)
        counts = (labels != IGNORED_LABEL).sum(1).tolist()
        nll = -log_p.gather(1, labels[labels != IGNORED_LABEL].unsqueeze(1)).squeeze(1)
        rows = zip(nll.split(counts), log_p.argmax(-1).split(counts), strict=True)
        return [(float(row.sum()), best.tolist()) for row, best in rows]

    def _blocks(
        self, part: str, documents: Sequence[Document], *, stream: int, dynamic: bool = False
    ) -> MaskedBlocks:
        encoded = encoded_lines(self.tokenizer, documents, packed=True)
        special = self.tokenizer.tokenizer.all_special_ids
        # How many tokens up to each are words: a block that has only <unk> predicts nothing.
        words = np.append(0, np.cumsum(~np.isin(encoded.ids.numpy(), special), dtype=np.int64))
        packed = pack_sentences(encoded.lengths.tolist(), self.block_length - 1)  # and <bos>
        blocks = np.fromiter(chain.from_iterable(packed), np.int64).reshape(-1, 2)
        blocks = blocks[words[blocks[:, 1]] > words[blocks[:, 0]]]
        if not len(blocks):
            raise CorpusError(
                f"{self.corpus.notes['corpus']}: the {part} part has no word that could be hidden: "
                "all of them are <unk>. Give text of the same language and tokenisation in all "
                "parts, a larger tokenizer.vocab_size or a smaller tokenizer.min_frequency."
            )
        return MaskedBlocks(
            encoded.ids, blocks, self.masking, self.tokenizer, stream=stream, dynamic=dynamic
        )


# Of all sequences together, from the negative log-likelihood of each, the number of its hidden
# tokens and the number of right predictions.
_ACCURACY = of_totals(lambda totals: 100 * totals[2] / totals[1] if totals[1] else math.nan)


def show(tokenizer: TextTokenizer, item: TokenItem, predicted: Sequence[int]) -> Sample | None:
    """Returns a line of a block in three forms: masked, complete, and as the model filled it in.

    `predicted` has a token for each label. Returns the first line with something to predict, cut
    if it is long, with the chosen tokens in brackets; None if there is no such line.
    """
    guesses = iter(predicted)
    columns: list[tuple[int, int, int | None]] = [  # read, true, predicted
        (read, read, None) if label == IGNORED_LABEL else (read, label, next(guesses))
        for read, label in zip(item["input_ids"], item["labels"], strict=True)
    ]
    ends = [i for i, (_, token, _) in enumerate(columns) if token == tokenizer.eos_token_id]
    starts = [1, *(end + 1 for end in ends)]  # after <bos>
    for start, end in zip(starts, [*ends, len(columns)], strict=True):
        line = columns[start : min(end, start + _SAMPLE_TOKENS)]
        if len(line) >= _SAMPLE_LEAST and any(guess is not None for *_, guess in line):
            sample = _show_line(tokenizer, line)
            # Without this a bracket could divide the bytes of a character.
            if "\ufffd" not in sample.given["Text"]:
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
    """Returns the text that tokens add to the text before them, white space included."""
    if len(tokens) == 1 and tokens[0] in tokenizer.tokenizer.all_special_ids:
        return " " + tokenizer.tokenizer.convert_ids_to_tokens(tokens[0])
    shorter, longer = tokenizer.decode([before, before + tokens])
    return longer[len(shorter) :]


def _bracket(piece: str) -> str:
    """Puts a word into brackets, without the white space before it."""
    word = piece.lstrip()
    return f"{piece[: len(piece) - len(word)]}[{word}]"
