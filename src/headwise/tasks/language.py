r"""Language modelling: running text, a decoder, perplexity over a sliding window.

The rows of a text are its lines. Its tokens are one stream, with a line end after each line and
before the first line. The stream is cut into blocks of `block_length` tokens. Every token is
predicted once; the first token of a block is predicted from the last token of the block before it.

In evaluation a window moves over the stream by `block_length - context` tokens, and only its new
tokens are scored. So every token is predicted once, with at least `context` tokens before it
(Baevski and Auli 2019, *Adaptive Input Representations for Neural Language Modeling*,
https://arxiv.org/abs/1809.10853; they evaluate blocks of 512 with 480 tokens of context). The word
perplexity is

    exp(Σ −log p(token | tokens before it) / (words + line ends)),

where white space separates words. The ends of all lines count, also of blank lines, as in published
figures for WikiText. With a vocabulary of words it is the ordinary perplexity; it can be compared
with that of subwords if there are no unknown words.

Neighbouring tokens depend on each other, so the bootstrap resamples documents, which blank lines
separate, or passages of about 200 words where there are few documents.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from headwise.data import tokenizers
from headwise.data.builtin import package_docs, pydoc_topics
from headwise.data.encode import Columns, EncodedDataset, lengths
from headwise.data.settings import Data
from headwise.messages import shown
from headwise.models.text import CausalLM
from headwise.ops import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.settings import LARGEST_SEED
from headwise.tasks.scores import MIN_ITEMS, Outcome, Score
from headwise.tasks.task import Positions, PredictRequest, Task, Track
from headwise.training.loss import preserve_rng_state

_BATCH_TOKENS = 8192  # tokens that a model reads at once in evaluation
_LOGITS = 2**26  # largest number of logits in memory in evaluation: 256 MB

# --- settings -----------------------------------------------------------------------------------


class RunningTextData(Data):
    """Running text: rows are lines, and a blank line separates two documents."""

    block_length: int = Field(128, ge=2)
    """Number of tokens of a sequence."""


class LanguageEvaluation(Evaluation):
    """How the text is scored, and new text is generated."""

    context: int | None = Field(None, ge=0)
    """Every scored token has at least this many tokens of context, except at the start of the text.
    It must be less than data.block_length; by default it is half of it."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Largest number of generated tokens; prompt and new tokens together are at most block_length.
    Default: half of block_length, and at most 60."""
    temperature: float = Field(1.0, ge=0)
    """Temperature: logits are divided by it before sampling; 0 always takes the most probable
    token."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Tokens are sampled from the most probable ones that together have this probability (Holtzman
    et al. 2020, https://arxiv.org/abs/1904.09751)."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the sampling. The same prompts, in the same order, give the same texts."""


class LanguageRecipe(Recipe):
    """The recipe of a language model."""

    data: RunningTextData
    """The text."""
    tokenizer: tokenizers.TokenizerSettings = Field(default_factory=tokenizers.TokenizerSettings)
    """The vocabulary."""
    evaluation: LanguageEvaluation = Field(default_factory=LanguageEvaluation)
    """How the test split is scored, and new text is generated."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        limit = self.data.block_length
        for name in ("context", "max_new_tokens"):
            value = getattr(self.evaluation, name)
            if value is not None and value >= limit:
                raise ValueError(
                    f"evaluation.{name} is {value}, expected less than data.block_length, {limit}"
                )
        return self


# --- running text in tokens ---------------------------------------------------------------------


class RunningText(Task):
    """The base of tasks on running text, whose rows are lines."""

    built_in: ClassVar = {"pydoc-topics": pydoc_topics, "package-docs": package_docs}
    columns: ClassVar[Mapping[str, str | None]] = {"text": "text"}
    column_types: ClassVar = {"text": "texts"}
    rows_at_once = 10_000
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    model_kind: ClassVar[tokenizers.Kind]
    special_id_names: ClassVar[tuple[str, ...]] = tokenizers.SPECIAL_ID_NAMES  # in a model's config

    @classmethod
    def clean(cls, columns: Columns, data: Any, split: str) -> Columns:
        """Returns the lines of rows; a row of several lines is a document."""
        return {"text": list(chain.from_iterable(map(split_lines, columns["text"])))}

    def open(self, folder: Path | None) -> None:
        def texts() -> Iterator[str]:
            for columns in self.rows_to_learn_from(self.recipe.tokenizer.sample_rows):
                yield from columns["text"]

        settings, key = self.recipe.tokenizer, [self.content_hash("train")]
        self.tokenizer = tokenizers.open_tokenizer(settings, self.model_kind, folder, texts, key)
        self.block_length = self.recipe.data.block_length
        self.padding = {"input_ids": self.tokenizer.pad_token_id, "labels": IGNORED_LABEL}
        self.cache_key = [self.tokenizer.backend_tokenizer.to_str(), self.block_length]
        self._encoder = tokenizers.encoder_of(self.tokenizer)

    def tokens(self, lines: list[str]) -> list[np.ndarray]:
        """Returns the tokens of each line, with its end."""
        end = self.tokenizer.eos_token_id
        return [np.array([*ids, end], np.int32) for ids in self._encoder(lines)]

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)

    @classmethod
    def sizes(cls, recipe: Any, task: Any = None) -> dict[str, Any]:
        sizes = {"max_length": recipe.data.block_length}
        if task is None:
            return sizes | {"vocab_size": tokenizers.largest_size(recipe.tokenizer, cls.model_kind)}
        ids = {name: getattr(task.tokenizer, name) for name in cls.special_id_names}
        return {**sizes, **ids, "vocab_size": tokenizers.vocab_size(task.tokenizer)}

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins items; a batch without padding has no mask, which is faster."""
        batch = super().collate(items)
        if batch["attention_mask"].all():
            del batch["attention_mask"]
        return batch

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        ids, names = batch["input_ids"], tokenizers.token_names(self.tokenizer)
        return {stack: Positions(ids.shape, ids, names) for stack, _ in self.stacks}


def split_lines(text: str | None) -> list[str]:
    r"""Returns the lines of a row; a row of several lines is a document, which a blank line ends.

    >>> split_lines(" One. \n"), split_lines("One.\n\nTwo.\n")
    (['One.'], ['One.', '', 'Two.', ''])
    """
    lines = [line.strip() for line in (text or "").removesuffix("\n").split("\n")]
    return [*lines, ""] if len(lines) > 1 and lines[-1] else lines


# --- the task -----------------------------------------------------------------------------------


class LanguageModelling(RunningText):
    """Language modelling of a text, in blocks of `block_length` predicted tokens."""

    name = "language-modelling"
    recipe_class = LanguageRecipe
    model_class = CausalLM
    item_name = "passages"
    model_kind = "lines"

    def encode(self, columns: Columns) -> Columns:
        """Returns blocks of tokens, each behind the token before it."""
        end = np.array([self.tokenizer.eos_token_id], np.int32)  # of the line before the first
        stream = np.concatenate([end, *self.tokens(columns["text"])])
        begins = range(0, len(stream) - 1, self.block_length)
        return {"input_ids": [stream[begin:][: self.block_length + 1] for begin in begins]}

    def items(self, rows: datasets.Dataset, split: str) -> EncodedDataset:
        # The first token of a block is not predicted.
        return EncodedDataset(rows, lengths(rows, "input_ids")[:, 0] - 1)

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins blocks; the labels are the same tokens without the first one."""
        labelled = [{**x, "labels": [IGNORED_LABEL, *x["input_ids"][1:]]} for x in items]
        return super().collate(labelled)

    def save(self, folder: Path) -> None:
        super().save(folder)
        GenerationConfig(**generation_options(self.recipe, self.tokenizer)).save_pretrained(folder)

    def evaluate(self, model: Any, split: str, evaluation: Any, track: Track = iter) -> Outcome:
        """Computes the perplexity per word and per token, and the bits per byte."""
        lines = chain.from_iterable(rows["text"] for rows in self.rows[split].iter(1000))
        sizes = ((len(line.split()), len(line.encode())) for line in lines)
        words, num_bytes = np.fromiter(sizes, np.dtype((np.int32, 2))).T  # of each line
        nats, tokens, unknown = self._line_losses(model, split, evaluation.context, track)
        unknown_share = unknown.sum() / tokens.sum()
        unknown_note = f"; {unknown_share:.1%} of the tokens are <unk>" if unknown_share else ""
        counts = {"word perplexity": (words + 1, "words and line ends")}
        if not tokenizers.has_words(self.tokenizer):  # with words, both perplexities are equal
            counts["token perplexity"] = (tokens, "subwords and line ends")
            if not unknown_share:  # the bytes of <unk> are not known
                counts["bits per byte"] = (num_bytes + 1, "bytes of UTF-8")
        starts, scores = passages(words), []
        for name, (count, unit) in counts.items():
            rows = np.add.reduceat([nats, count], starts, axis=1).T
            note = f"over {count.sum(dtype=int):,} {unit}{unknown_note}"
            statistic, digits = ("bits", 3) if name == "bits per byte" else ("perplexity", 1)
            fields = {"lower_is_better": True, "digits": digits, "note": note}
            scores.append(Score.from_rows(name, rows, statistic, **fields))
        return Outcome(scores=scores)

    def _line_losses(self, model: Any, split: str, context: int | None, track: Track) -> np.ndarray:
        """Returns the nats, the number of tokens and of <unk> of each line, `(3, lines)`."""
        blocks = self.stored_items(split).rows.with_format("numpy")["input_ids"][:]
        stream = np.concatenate([blocks[0][:1], *(block[1:] for block in blocks)])
        num_targets = len(stream) - 1
        context = self.block_length // 2 if context is None else context
        stride = self.block_length - context
        # The first window predicts as many tokens as fit, the last one the rest, each other one
        # `stride` tokens. These others are read in batches.
        first = min(num_targets, (context // stride + 1) * stride)
        last_begin = num_targets - (num_targets - first) % stride
        window_logits = (stride + 1) * model.config.vocab_size
        windows = max(1, min(_BATCH_TOKENS // self.block_length, _LOGITS // window_logits))
        cuts = sorted({0, *range(first, last_begin, windows * stride), last_begin, num_targets})

        def losses(span: tuple[int, int]) -> np.ndarray:
            begin, end = span
            tokens = stream[max(0, begin - context) : end + 1]
            predicted = min(stride if begin else first, end - begin)
            length = min(len(tokens), context + predicted + 1)
            batch = torch.from_numpy(tokens).long().unfold(0, length, stride).to(model.device)
            with torch.no_grad():
                logits = model(input_ids=batch, logits_to_keep=predicted + 1).logits[:, :-1]
            targets = batch[:, -predicted:].flatten()
            nats = F.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="none")
            return nats.double().cpu().numpy()

        nats = np.concatenate([losses(span) for span in track([*pairwise(cuts)])])
        targets = stream[1:]
        line = np.cumsum(stream[:-1] == self.tokenizer.eos_token_id) - 1  # of each target
        figures = nats, np.ones(num_targets), targets == self.tokenizer.unk_token_id
        return np.stack([np.bincount(line, figure) for figure in figures])

    @classmethod
    def predict(
        cls, folder: Path, recipe: Any, model: Any, request: PredictRequest
    ) -> Iterator[str]:
        """Yields continuations of prompts; several texts of one prompt have different seeds."""
        request.refuse(cls.name, "output")
        tokenizer = tokenizers.read_tokenizer(folder, cls.model_kind)
        evaluation = recipe.evaluation
        prompts = ["\n".join(map(str.strip, x.split("\n"))) for x in request.lines(default=[""])]
        for seed in range(evaluation.seed, evaluation.seed + (request.number or 1)):
            with_seed = evaluation.model_copy(update={"seed": seed})
            seeded = recipe.model_copy(update={"evaluation": with_seed})
            for prompt in prompts:
                yield (prompt + generate_text(model, tokenizer, prompt, seeded)).removesuffix("\n")


def passages(words: np.ndarray) -> np.ndarray:
    """Returns the first line of each document, or of each passage where there are few documents.

    Blank lines end a document. A passage has at least 200 words, or a tenth of a short text.

    Args:
        words: the number of words of each line.
    """
    is_text = words > 0
    begins = np.flatnonzero(is_text[1:] & ~is_text[:-1]) + 1
    documents = [0, *begins[begins > is_text.argmax()].tolist()]
    if len(documents) >= MIN_ITEMS:
        return np.array(documents)
    before = np.append(0, np.cumsum(words, dtype=np.int64))  # words before each line
    min_words = max(1, min(200, before[-1] / MIN_ITEMS))
    starts, begin = [0], np.searchsorted(before, min_words)
    while begin < len(words) and before[-1] - before[begin] >= min_words:
        starts.append(int(begin))
        begin = np.searchsorted(before, before[begin] + min_words)
    return np.array(starts)


# --- generated text -----------------------------------------------------------------------------


def generation_options(
    recipe: LanguageRecipe, tokenizer: PreTrainedTokenizerFast
) -> dict[str, Any]:
    """Returns the settings of a recipe as arguments of `generate()` and of `GenerationConfig`."""
    evaluation = recipe.evaluation
    options = {
        "max_new_tokens": evaluation.max_new_tokens or min(60, recipe.data.block_length // 2),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": None,  # a text may have several lines
        "remove_invalid_values": True,  # of a model that diverged
        "do_sample": evaluation.temperature > 0,
    }
    sampling = {"temperature": evaluation.temperature, "top_k": 0, "top_p": evaluation.top_p}
    return options | (sampling if evaluation.temperature else {})


def generate_text(
    model: CausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, recipe: LanguageRecipe
) -> str:
    """Returns the continuation of a prompt by a model, without the prompt.

    A prompt begins a line and may hold line ends; from an empty prompt the model begins a text.

    Raises:
        ValueError: prompt and new tokens are longer than `block_length`.
    """
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    options, size = generation_options(recipe, tokenizer), inputs["input_ids"].size(1)
    if size > (limit := recipe.data.block_length - options["max_new_tokens"]):
        raise ValueError(
            f"INPUT has {shown(prompt)} of {size} tokens, expected at most {limit}: with the new "
            f"ones it has to fit into data.block_length; shorten it, or set "
            f"evaluation.max_new_tokens"
        )
    with torch.no_grad(), preserve_rng_state():
        torch.manual_seed(recipe.evaluation.seed)
        (ids,) = model.generate(**inputs, **options)
    # It is decoded together with the prompt: by itself it would lose its first space.
    return tokenizer.decode(ids)[len(tokenizer.decode(inputs["input_ids"][0])) :]
