"""Masked language modelling: packed text, an encoder, the perplexity of hidden words.

Devlin et al. 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding*, https://arxiv.org/abs/1810.04805 (which tokens are hidden, and how);
Liu et al. 2019, *RoBERTa: A Robustly Optimized BERT Pretraining Approach*,
https://arxiv.org/abs/1907.11692 (other tokens are hidden in each epoch; FULL-SENTENCES).

Full lines are packed into blocks of at most `block_length` tokens. Each block begins with `<bos>`;
each line ends with `<eos>`, and another `<eos>` separates two documents. Each epoch of training has
its own masks; in evaluation the masks are fixed, and the same for all systems.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from headwise.data.encode import Columns, EncodedDataset, Item, hash_of, lengths
from headwise.data.load import DataError
from headwise.data.stream import Stream
from headwise.data.tokenizers import TokenizerSettings, read_tokenizer, vocab_size
from headwise.models.text import MaskedLM
from headwise.ops import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.settings import LARGEST_SEED, FrozenSettings
from headwise.tasks.language import RunningText, RunningTextData
from headwise.tasks.scores import Outcome, Score
from headwise.tasks.task import Positions, PredictRequest, Track

_BATCH_TOKENS = 4096  # tokens of a batch in evaluation
_LINES = 32  # lines that are filled in at once
# The shares of the predicted tokens that <mask> and a random token replace, as in BERT; the others
# stay as they are.
_MASKED, _RANDOM = 0.8, 0.1

# --- settings -----------------------------------------------------------------------------------


class MaskedData(RunningTextData):
    """Running text: rows are lines, and a blank line separates two documents."""

    block_length: int = Field(512, ge=8)
    """Largest number of tokens of a sequence, into which full lines are packed."""


class MaskingSettings(FrozenSettings):
    """Which tokens are predicted."""

    fraction: float = Field(0.15, gt=0, le=1)
    """Share of the tokens of a sequence, special ones excluded, that are predicted."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the random masks; the same for all systems and seeds of a comparison."""


class MaskedEvaluation(Evaluation):
    """How the test split is scored."""

    draws: int = Field(1, ge=1)
    """Number of random masks of each test sequence; with more of them the scores of a small test
    split vary less."""


class MaskedRecipe(Recipe):
    """The recipe of a masked language model."""

    data: MaskedData
    """The text."""
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    """The vocabulary."""
    masking: MaskingSettings = Field(default_factory=MaskingSettings)
    """Which tokens are predicted."""
    evaluation: MaskedEvaluation = Field(default_factory=MaskedEvaluation)
    """How the test split is scored."""


# --- the task -----------------------------------------------------------------------------------


class MaskedLanguageModelling(RunningText):
    """Masked language modelling of a text in packed blocks."""

    name = "masked-language-modelling"
    recipe_class = MaskedRecipe
    model_class = MaskedLM
    item_name = "sequences"
    model_kind = "masked"
    stacks = (("encoder", 128),)  # table 2 of Zhang et al. 2022, https://arxiv.org/abs/2210.05144
    special_id_names = (*RunningText.special_id_names, "mask_token_id")

    def open(self, folder: Path | None) -> None:
        super().open(folder)
        self._is_word = np.ones(vocab_size(self.tokenizer), bool)
        self._is_word[self.tokenizer.all_special_ids] = False
        self._words = np.flatnonzero(self._is_word)

    def encode(self, columns: Columns) -> Columns:
        """Returns blocks of full lines, without those that have no word to hide."""
        lines = columns["text"]
        lines = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
        tokens = self.tokens(lines)  # a blank line is only its end, a separator
        stream = np.concatenate([np.empty(0, np.int32), *tokens])
        packed = pack_sentences(list(map(len, tokens)), self.block_length - 1)
        blocks = (stream[start:end] for start, end in packed)
        bos = np.array([self.tokenizer.bos_token_id], np.int32)
        with_words = (block for block in blocks if self._is_word[block].any())
        return {"input_ids": [np.concatenate([bos, block]) for block in with_words]}

    def items(self, rows: datasets.Dataset, split: str) -> EncodedDataset:
        if not len(rows) and not isinstance(self.rows[split], Stream):
            if not any(self.rows[split]["text"]):
                raise DataError(f"the {split} split has no words: all of its lines are blank")
            raise DataError(
                f"the {split} split has no word that could be hidden: all of them are <unk>; give "
                f"text of the same language, or a larger tokenizer.vocab_size"
            )
        # All test sets have one seed, so that a further one does not change the others.
        seed = (self.recipe.masking.seed, {"train": 0, "validation": 1}.get(split, 2))
        sizes = lengths(rows, "input_ids")[:, 0]
        return EncodedDataset(rows, sizes, self._mask, seed, resample_each_epoch=split == "train")

    def _mask(self, item: Item, generator: np.random.Generator) -> Item:
        """Hides some words of a sequence, and labels them; all but special tokens are words.

        Of n words, ⌊n · fraction + u⌋ are chosen, with u uniform in [0, 1), and at least one, as in
        the code of RoBERTa. Each chosen word is replaced by the mask or by a random word, or kept.
        """
        fraction, ids = self.recipe.masking.fraction, np.array(item["input_ids"])
        inputs, labels = ids.copy(), np.full_like(ids, IGNORED_LABEL)
        candidates = np.flatnonzero(self._is_word[ids])
        number = max(1, int(len(candidates) * fraction + generator.random()))
        chosen = generator.choice(candidates, min(number, len(candidates)), replace=False)
        labels[chosen] = ids[chosen]
        uniform = generator.random(len(chosen))
        words = generator.choice(self._words, len(chosen))
        masked = uniform < _MASKED
        replaced = ~masked & (uniform < _MASKED + _RANDOM)
        inputs[chosen[masked]] = self.tokenizer.mask_token_id
        inputs[chosen[replaced]] = words[replaced]
        return {"input_ids": inputs, "labels": labels}

    def content_hash(self, split: str | None = None) -> str:
        if split is None:
            return super().content_hash()
        # The items are sequences of tokens with masks.
        settings = self.recipe.masking
        shares = {"fraction": settings.fraction, "masked": _MASKED, "random": _RANDOM}
        masking = {**shares, "seed": settings.seed}
        return hash_of(super().content_hash(split), masking, *self.cache_key)

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns the tokens that the model reads, and the fate of each: predicted, masked."""
        predicted = batch["labels"] != IGNORED_LABEL
        masked = predicted & (batch["input_ids"] == self.tokenizer.mask_token_id)
        # 0 where nothing is predicted, 1 at a mask, 2 where a predicted token is not masked.
        hidden = (2 * predicted.long() - masked.long(), ["not predicted", "masked", "shown"])
        described = super().describe(batch)
        return {stack: replace(x, classes={"mask": hidden}) for stack, x in described.items()}

    def evaluate(self, model: Any, split: str, evaluation: Any, track: Track = iter) -> Outcome:
        """Computes perplexity and accuracy over all chosen tokens, also those that are not masked.

        This is how the papers count.
        """
        items = self.stored_items(split)
        redrawn = EncodedDataset(
            items.rows, items.lengths, items.augment, items.seed, resample_each_epoch=True
        )

        def score(indices: list[int]) -> np.ndarray:
            """Returns the nats, the number of labels and of correct ones, `(sequences, 3)`."""
            sums = np.zeros((len(indices), 3))
            for draw in range(evaluation.draws):
                redrawn.set_epoch(draw)
                batch = self.collate(redrawn.__getitems__(indices))
                batch = {name: x.to(model.device) for name, x in batch.items()}
                hidden = batch["labels"] != IGNORED_LABEL
                with torch.no_grad():
                    logits = model(**batch).logits  # (hidden tokens, vocabulary)
                log_p = logits.double().log_softmax(-1)
                labels = batch["labels"][hidden].unsqueeze(1)
                right = log_p.argmax(-1, keepdim=True) == labels
                rows = torch.cat([-log_p.gather(1, labels), torch.ones_like(right), right], 1)
                np.add.at(sums, hidden.nonzero()[:, 0].cpu().numpy(), rows.cpu().numpy())
            return sums

        batches, figures = self.batches(split, _BATCH_TOKENS), np.empty((len(items), 3))
        figures[list(chain(*batches))] = np.concatenate([score(batch) for batch in track(batches)])
        count = f"{int(figures[:, 1].sum()):,} hidden tokens in {len(items):,} sequences"
        fields = {"lower_is_better": True, "digits": 2, "note": count}
        perplexity = Score.from_rows("perplexity", figures[:, :2], "perplexity", **fields)
        note = f"percent of {count}"
        accuracy = Score.from_rows("accuracy", figures[:, [2, 1]], "accuracy", note=note)
        return Outcome(scores=[perplexity, accuracy])

    @classmethod
    def predict(
        cls, folder: Path, recipe: Any, model: Any, request: PredictRequest
    ) -> Iterator[str]:
        """Yields each line with the likeliest token in the place of each `<mask>`."""
        request.refuse(cls.name, "number", "output")
        tokenizer, lines = read_tokenizer(folder, cls.model_kind), request.lines()
        special = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]
        for begin in range(0, len(lines), _LINES):
            texts = [line.strip() for line in lines[begin : begin + _LINES]]
            batch = tokenizer(texts, padding=True, return_tensors="pt").to(model.device)
            ids = batch["input_ids"]
            with torch.no_grad():
                predicted = model(**batch).logits.argmax(-1)
            filled = torch.where(ids == tokenizer.mask_token_id, predicted, ids).tolist()
            yield from (tokenizer.decode([x for x in row if x not in special]) for row in filled)


def pack_sentences(lengths: list[int], capacity: int) -> Iterator[tuple[int, int]]:
    """Packs consecutive full sentences into blocks of at most `capacity` tokens.

    The length of a sentence includes its end. An empty sentence, of length 1, separates two
    documents; it is dropped at the beginning and end of a block. A sentence that is longer than a
    block is cut.

    Yields the begin and the end of each block in the stream of tokens.

    >>> list(pack_sentences([3, 4, 1, 2, 1, 9], capacity=8))
    [(0, 7), (8, 10), (11, 19), (19, 20)]
    """
    sizes = np.array(lengths, int)
    ends = np.append(0, np.cumsum(sizes))
    separators = set((ends[1:][sizes == 1] - 1).tolist())
    start = 0
    while start < ends[-1]:
        if start in separators:
            start += 1
            continue
        fits = int(ends[np.searchsorted(ends, start + capacity, side="right") - 1])
        end = next_start = fits if fits > start else start + capacity  # a long sentence is cut
        while end - 1 in separators:
            end -= 1
        yield start, end
        start = next_start
