r"""Language modelling: running text, a decoder, perplexity over a sliding window.

The rows of a text are its lines. Its tokens are one stream, with a line end after each line and one
before the first, which is cut into blocks of `block_length` tokens. Every token is predicted once;
the first of a block is predicted from the last of the block before.

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

Neighbouring tokens are not independent of each other, so the bootstrap draws documents, which blank
lines divide, or, where there are few, passages of about 200 words.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from headwise.data.builtin import package_docs, pydoc_topics
from headwise.data.encode import Columns, Items, lengths, pad
from headwise.data.settings import Data
from headwise.data.tokenizers import (
    Kind,
    TokenizerSettings,
    encoder_of,
    has_words,
    largest_size,
    open_tokenizer,
    read_tokenizer,
    token_names,
    vocab_size,
)
from headwise.messages import shown
from headwise.models.for_tasks import CausalLM
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.settings import LARGEST_SEED, FrozenSettings
from headwise.tasks.scores import LEAST_ITEMS, Outcome, Sample, Score, spread
from headwise.tasks.task import Each, Positions, Task, Wish
from headwise.training.processes import own_draws

_BATCH_TOKENS = 8192  # tokens that a model reads at once in evaluation
_LOGITS = 2**26  # largest number of logits at once in evaluation: 256 MB
_PASSAGE_WORDS = 200  # of an item of the bootstrap, where a text has few documents
_PROMPTS = 32  # texts that are written at once
_NEW_TOKENS = 60  # of a text, by default

# --- settings -----------------------------------------------------------------------------------


class RunningTextData(Data):
    """Running text: rows are lines, and a blank one divides two documents."""

    block_length: int = Field(128, ge=2)
    """Number of tokens that the model reads and predicts at once."""


class GenerationSettings(FrozenSettings):
    """Settings of generated text, by nucleus sampling or greedily.

    Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*,
    https://arxiv.org/abs/1904.09751.
    """

    max_new_tokens: int | None = Field(None, ge=1)
    """Largest number of tokens that are written. With the prompt there are at most block_length.
    Default: half of it, and at most 60."""
    lines: int | None = Field(None, ge=1)
    """Number of lines after which the text ends. Default: line ends do not end it."""
    temperature: float = Field(1.0, ge=0)
    """Temperature: logits are divided by it before sampling; 0 always takes the most probable
    token."""
    top_k: int = Field(0, ge=0)
    """Tokens are sampled from this many most probable ones; 0 for all."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Tokens are sampled from the most probable ones that together have this probability."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the sampling. The same prompts, in the same order, give the same texts."""


class LanguageEvaluation(Evaluation):
    """Settings of the evaluation: context of the scores, and generated text."""

    context: int | None = Field(None, ge=0)
    """Every scored token has at least this many tokens of context, except at the start of the text.
    It must be less than data.block_length; by default it is half of it."""
    samples: int = Field(12, ge=0)
    """Number of lines of the test part that the model continues."""
    generation: GenerationSettings = Field(default_factory=GenerationSettings)
    """Settings of generated text; samples always end with their line."""


class LanguageRecipe(Recipe):
    """The recipe of a language model."""

    task: str = "language-modelling"
    """Selects language modelling."""
    data: RunningTextData
    """Which text the model learns from."""
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    """The vocabulary."""
    evaluation: LanguageEvaluation = Field(default_factory=LanguageEvaluation)
    """How the test part is scored, and how many samples are generated."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        block_length = self.data.block_length
        context, new = self.evaluation.context, self.evaluation.generation.max_new_tokens
        for name, value in (("context", context), ("generation.max_new_tokens", new)):
            if value is not None and value >= block_length:
                raise ValueError(
                    f"evaluation.{name} is {value}, expected less than data.block_length, "
                    f"{block_length}: a model reads and predicts that many tokens at once"
                )
        return self


# --- running text in tokens ---------------------------------------------------------------------


class RunningText(Task):
    """The base of tasks on running text, whose rows are lines."""

    built_in: ClassVar = {"pydoc-topics": pydoc_topics, "package-docs": package_docs}
    columns: ClassVar[Mapping[str, str | None]] = {"text": "text"}
    rows_at_once = 10_000
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    kind: ClassVar[Kind]  # of the tokenizer
    stack: ClassVar[str]  # the model's only one
    roles: ClassVar[tuple[str, ...]] = ("pad", "bos", "eos")  # of special tokens in the model

    @classmethod
    def clean(cls, columns: Columns, data: Any, part: str) -> Columns:
        """Returns the lines of rows. A row of several lines is a document."""
        return {"text": list(chain.from_iterable(map(lines_of, columns["text"])))}

    def open(self, folder: Path | None) -> None:
        def texts() -> Iterator[str]:
            for columns in self.to_learn_from(self.recipe.tokenizer.sample_rows):
                yield from columns["text"]

        made_of = [self.digest("train")]
        self.tokenizer = open_tokenizer(self.recipe.tokenizer, self.kind, folder, texts, made_of)
        self.block_length = self.recipe.data.block_length
        self.made_of = [self.tokenizer.backend_tokenizer.to_str(), self.block_length]
        self._encoder, self._names = encoder_of(self.tokenizer), token_names(self.tokenizer)

    def tokens(self, lines: list[str]) -> list[np.ndarray]:
        """Returns the tokens of each line, with its end."""
        end, some = self.tokenizer.eos_token_id, range(0, len(lines), 1000)
        encoded = chain.from_iterable(self._encoder(lines[n : n + 1000]) for n in some)
        return [np.array([*ids, end], np.int32) for ids in encoded]

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)

    @classmethod
    def sizes(cls, recipe: Any, task: Any = None) -> dict[str, Any]:
        sizes = {"max_length": recipe.data.block_length}
        if task is None:
            return {**sizes, "vocab_size": largest_size(recipe.tokenizer, cls.kind)}
        ids = {
            f"{role}_token_id": getattr(task.tokenizer, f"{role}_token_id") for role in cls.roles
        }
        return {**sizes, **ids, "vocab_size": vocab_size(task.tokenizer)}

    def padded(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Joins items with `input_ids` and `labels`; a batch with padding has a mask too."""
        marked = [{**item, "attention_mask": np.ones(len(item["labels"]), int)} for item in items]
        fill = {"labels": IGNORED_LABEL, "attention_mask": 0}
        batch = pad(marked, {"input_ids": self.tokenizer.pad_token_id, **fill})
        if bool(batch["attention_mask"].all()):
            del batch["attention_mask"]
        return batch

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        word = "word" if has_words(self.tokenizer) else "subword"
        return {self.stack: Positions.of_tokens(batch["input_ids"], self._names, word)}


def lines_of(text: str | None) -> list[str]:
    r"""Returns the lines of a row. Behind those of a document, a row of several, is a blank one.

    >>> lines_of(" One. \n"), lines_of("One.\n\nTwo.\n")
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
    pipeline = "text-generation"
    kind, stack = "lines", "decoder"

    def encode(self, columns: Columns) -> Columns:
        """Returns the blocks of lines, each with the token before it in front."""
        before = np.array([self.tokenizer.eos_token_id], np.int32)
        stream = np.concatenate([before, *self.tokens(columns["text"])])
        begins = range(0, len(stream) - 1, self.block_length)
        return {"input_ids": [stream[begin:][: self.block_length + 1] for begin in begins]}

    def items(self, rows: datasets.Dataset, part: str) -> Items:
        return Items(rows, lengths(rows, "input_ids")[:, 0] - 1)  # a block's first is not predicted

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins blocks; labels are the same tokens, of which nothing predicts the first."""
        return self.padded(
            [{**item, "labels": [IGNORED_LABEL, *item["input_ids"][1:]]} for item in items]
        )

    @classmethod
    def cost_lengths(cls, recipe: LanguageRecipe) -> dict[str, int]:
        return {"decoder": recipe.data.block_length}

    def save(self, folder: Path) -> None:
        super().save(folder)
        settings = self.recipe.evaluation.generation
        options = generation_options(settings, self.tokenizer, self.block_length)
        GenerationConfig(**options).save_pretrained(folder)

    def evaluate(self, model: Any, part: str, evaluation: Any, each: Each) -> Outcome:
        """Computes the perplexity of a part, and has the model continue some of its lines."""
        items = self.stored(part)
        lines = chain.from_iterable(rows["text"] for rows in self.rows[part].iter(1000))
        counted = ((len(line.split()), len(line.encode())) for line in lines)
        words, size = np.fromiter(counted, np.dtype((np.int32, 2))).T  # of each line
        context = evaluation.context
        if context is None:
            context = self.block_length // 2
        nats, tokens, unknown = self._line_losses(model, items, context, each)
        counts = {"word perplexity": (words + 1, "words and line ends")}
        if not has_words(self.tokenizer):  # of words, both perplexities are the same
            counts["token perplexity"] = (tokens, "subwords and line ends")
            if not unknown.any():  # the bytes of <unk> are not known
                counts["bits per byte"] = (size + 1, "bytes of UTF-8")
        starts = passages(words)
        scores = []
        for name, (count, unit) in counts.items():
            is_bits = name == "bits per byte"
            note = f"over {count.sum(dtype=int):,} {unit}"
            if unknown.any():
                note += f"; {unknown.sum() / tokens.sum():.1%} of the tokens are <unk>"
            scores.append(
                Score.of(
                    name,
                    np.add.reduceat([nats, count], starts, axis=1).T,
                    "bits" if is_bits else "perplexity",
                    lower_is_better=True,
                    digits=3 if is_bits else 1,
                    note=note,
                )
            )
        return Outcome(scores=scores, samples=self._samples(model, part, evaluation, each, words))

    def _line_losses(self, model: CausalLM, items: Items, context: int, each: Each) -> np.ndarray:
        """Returns sums over the tokens of each line: their nats, their number, that of <unk>.

        Its shape is `(3, lines)`.
        """
        stream, stride = TokenStream(items), self.block_length - context
        end, unknown = self.tokenizer.eos_token_id, self.tokenizer.unk_token_id
        # Window n predicts the tokens behind n * stride. Those with the whole context, and as many
        # tokens to predict as any, have one length; the others are read one by one.
        full = len(stream) // stride
        whole = range(min(math.ceil(context / stride), full), full)
        logits = (stride + 1) * model.config.vocab_size
        at_once = max(1, min(_BATCH_TOKENS // self.block_length, _LOGITS // logits))
        windows = [range(n, n + 1) for n in range(whole.start)]
        windows += [whole[n : n + at_once] for n in range(0, len(whole), at_once)]
        windows += [range(whole.stop, whole.stop + 1)] if len(stream) % stride else []

        def losses(of: range) -> np.ndarray:
            before, last = of.start * stride, min(of.stop * stride, len(stream))
            read = stream.between(max(0, before - context), last)
            predicted = min(stride, last - before)
            length = len(read) - (len(of) - 1) * stride
            batch = torch.from_numpy(read).long().unfold(0, length, stride).to(model.device)
            with torch.no_grad():
                found = model(input_ids=batch, logits_to_keep=predicted + 1).logits[:, :-1]
            targets = batch[:, -predicted:].flatten()
            nats = F.cross_entropy(found.flatten(0, 1).float(), targets, reduction="none")
            ids = targets.cpu().numpy()
            ends = ids == end
            line = np.cumsum(ends) - ends
            figures = (nats.double().cpu().numpy(), np.ones(len(ids)), ids == unknown)
            at_least = ends.sum() + 1
            return np.stack([np.bincount(line, each, at_least) for each in figures])

        found, lines = each(windows, losses), 0
        total = np.zeros((3, 1 + sum(of.shape[1] for of in found)))
        for of in found:  # the last line of one goes on in the next
            total[:, lines : lines + of.shape[1]] += of
            lines += of.shape[1] - 1
        return total[:, :lines]

    def _samples(
        self,
        model: CausalLM,
        part: str,
        evaluation: LanguageEvaluation,
        each: Each,
        words: np.ndarray,
    ) -> list[Sample]:
        """Has the model continue the first halves of lines that are spread over a part."""
        settings = evaluation.generation.model_copy(update={"lines": 1})
        room = self.block_length - new_tokens(settings, self.block_length)
        halves = []
        for line in spread(np.flatnonzero(words >= 8).tolist(), evaluation.samples):
            text = self.rows[part][line]["text"].split()
            middle = min(len(text) // 2, 32, 1 + room // 3)  # few words have more tokens
            halves.append((" ".join(text[:middle]), " ".join(text[middle:])))
        halves = [half for half in halves if len(self.tokenizer(half[0]).input_ids) <= room]
        prompts = [prompt for prompt, _ in halves]
        at_once = [prompts[n : n + _PROMPTS] for n in range(0, len(prompts), _PROMPTS)]

        def write(prompts: list[str]) -> list[str]:
            return continued(model, self.tokenizer, prompts, settings, self.block_length)

        return [
            Sample(given={"Prompt": prompt, "Text": rest}, made=text.strip())
            for (prompt, rest), text in zip(halves, chain(*each(at_once, write)), strict=True)
        ]

    @classmethod
    def predict(
        cls, folder: Path, recipe: LanguageRecipe, model: HeadwiseModel, wish: Wish
    ) -> Iterator[str]:
        """Yields continuations of prompts; each of a prompt's texts has a seed of its own."""
        assert isinstance(model, CausalLM)
        wish.refuse(cls.name, "output")
        tokenizer, settings = read_tokenizer(folder, cls.kind), recipe.evaluation.generation
        prompts = ["\n".join(map(str.strip, text.split("\n"))) for text in wish.lines(default=[""])]
        for number in range(1 if wish.number is None else wish.number):
            drawn = settings.model_copy(update={"seed": settings.seed + number})
            for begin in range(0, len(prompts), _PROMPTS):
                some = prompts[begin : begin + _PROMPTS]
                texts = continued(model, tokenizer, some, drawn, recipe.data.block_length)
                for prompt, text in zip(some, texts, strict=True):
                    yield (prompt + text).removesuffix("\n")


class TokenStream:
    """The tokens of a part, which are read from its blocks as they are needed.

    Token 0 is the line end before the text; the length is the number of the others.
    """

    def __init__(self, items: Items) -> None:
        self._blocks = items.rows.with_format("numpy")
        self._ends = np.cumsum(items.lengths, dtype=np.int64)  # the last token of each block

    def __len__(self) -> int:
        return int(self._ends[-1])

    def between(self, begin: int, end: int) -> np.ndarray:
        """Returns the tokens from `begin` to a later one, `end`, both included."""
        first = int(np.searchsorted(self._ends, begin, side="right"))
        last = int(np.searchsorted(self._ends, end))
        blocks = list(self._blocks[first : last + 1]["input_ids"])
        read = np.concatenate([blocks[0], *(block[1:] for block in blocks[1:])])
        start = int(self._ends[first]) - (len(blocks[0]) - 1)
        return read[begin - start : end - start + 1]


def passages(words: np.ndarray) -> np.ndarray:
    """Returns the first lines of documents, or of passages where there are few documents.

    Lines of a passage have 200 words or more together, or a tenth of the words of a shorter text.

    Args:
        words: number of words of each line; blank lines end a document.
    """
    is_text = words > 0
    begins = np.flatnonzero(is_text[1:] & ~is_text[:-1]) + 1
    documents = [0, *begins[begins > is_text.argmax()].tolist()]
    if len(documents) >= LEAST_ITEMS:
        return np.array(documents)
    before = np.append(0, np.cumsum(words, dtype=np.int64))  # words before each line
    least = max(1, min(_PASSAGE_WORDS, before[-1] / LEAST_ITEMS))
    starts, begin = [0], np.searchsorted(before, least)
    while begin < len(words) and before[-1] - before[begin] >= least:
        starts.append(int(begin))
        begin = np.searchsorted(before, before[begin] + least)
    return np.array(starts)


# --- generated text -----------------------------------------------------------------------------


def new_tokens(settings: GenerationSettings, block_length: int) -> int:
    """Returns the largest number of tokens that are written behind a prompt."""
    return settings.max_new_tokens or min(_NEW_TOKENS, block_length // 2)


def generation_options(
    settings: GenerationSettings, tokenizer: PreTrainedTokenizerFast, block_length: int
) -> dict[str, Any]:
    """Returns the settings as arguments of `generate()` and of `GenerationConfig`.

    With `lines: 1` a text ends with its line; more lines cannot be counted there.
    """
    sampling = settings.model_dump(include={"temperature", "top_k", "top_p"})
    return {
        "max_new_tokens": new_tokens(settings, block_length),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id if settings.lines == 1 else None,
        "remove_invalid_values": True,  # of a model that diverged
        "do_sample": settings.temperature > 0,
        **(sampling if settings.temperature > 0 else {}),
    }


def continued(
    model: CausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    settings: GenerationSettings,
    block_length: int,
) -> list[str]:
    """Returns the texts with which a model goes on from prompts, without the prompts.

    A prompt begins a line and may hold line ends; behind an empty one the model begins a text.

    Raises:
        ValueError: a prompt is too long; with what is written it would be longer than any text that
            the model was trained on.
    """
    batch = tokenizer(prompts, padding=True, return_tensors="pt").to(model.device)
    sizes, new = batch["attention_mask"].sum(1), new_tokens(settings, block_length)
    if (size := int(sizes.max())) > block_length - new:
        raise ValueError(
            f"INPUT has {shown(prompts[int(sizes.argmax())])} of {size} tokens, expected at most "
            f"{block_length - new}: with up to {new} new ones it has to fit into the block_length "
            f"of the run, {block_length}; shorten it, or set evaluation.generation.max_new_tokens"
        )
    options = generation_options(settings, tokenizer, block_length)
    with torch.no_grad(), own_draws():
        torch.manual_seed(settings.seed)
        rows = model.generate(**batch, **options).tolist()
    texts = []
    for row, ids in zip(rows, batch["input_ids"].tolist(), strict=True):
        # Decoded together with the prompt: a text by itself would lose its first space.
        before, after = (
            tokenizer.decode([token for token in each if token != tokenizer.pad_token_id])
            for each in (ids, row)
        )
        lines = after[len(before) :].split("\n")
        texts.append("\n".join(lines[: settings.lines]))
    return texts
