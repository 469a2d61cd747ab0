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
lines, as in published figures for WikiText. With a vocabulary of words it is the ordinary
perplexity, and comparable with that of subwords only if there are no unknown words.

Neighbouring tokens are not independent of each other, so the bootstrap draws documents, which blank
lines divide, or, where there are few, passages of about 200 words.
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
from headwise.data.encode import Columns, Items, lengths
from headwise.data.settings import Data
from headwise.messages import shown
from headwise.models.for_tasks import CausalLM
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.settings import LARGEST_SEED
from headwise.tasks.scores import LEAST_ITEMS, Outcome, Sample, Score, spread
from headwise.tasks.task import SPECIAL, Each, Positions, Task, Wish
from headwise.training.loss import own_draws

_BATCH_TOKENS = 8192  # tokens that a model reads at once in evaluation
_LOGITS = 2**26  # largest number of logits at once in evaluation: 256 MB
_PROMPTS = 32  # texts that are written at once

# --- settings -----------------------------------------------------------------------------------


class RunningTextData(Data):
    """Running text: rows are lines, and a blank one divides two documents."""

    block_length: int = Field(128, ge=2)
    """Number of tokens that the model reads and predicts at once."""


class LanguageEvaluation(Evaluation):
    """Settings of the evaluation: context of the scores, and generated text."""

    context: int | None = Field(None, ge=0)
    """Every scored token has at least this many tokens of context, except at the start of the text.
    It must be less than data.block_length; by default it is half of it."""
    samples: int = Field(12, ge=0)
    """Number of lines of the test part that the model continues."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Largest number of tokens that are written. With the prompt there are at most block_length.
    Default: half of it, and at most 60."""
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
    """Which text the model learns from."""
    tokenizer: tokenizers.TokenizerSettings = Field(default_factory=tokenizers.TokenizerSettings)
    """The vocabulary."""
    evaluation: LanguageEvaluation = Field(default_factory=LanguageEvaluation)
    """How the test part is scored, and how many samples are generated."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        block_length = self.data.block_length
        for name in ("context", "max_new_tokens"):
            value = getattr(self.evaluation, name)
            if value is not None and value >= block_length:
                raise ValueError(
                    f"evaluation.{name} is {value}, expected less than data.block_length, "
                    f"{block_length}"
                )
        return self


# --- running text in tokens ---------------------------------------------------------------------


class RunningText(Task):
    """The base of tasks on running text, whose rows are lines."""

    built_in: ClassVar = {"pydoc-topics": pydoc_topics, "package-docs": package_docs}
    columns: ClassVar[Mapping[str, str | None]] = {"text": "text"}
    rows_at_once = 10_000
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    kind: ClassVar[tokenizers.Kind]  # of the tokenizer
    stack: ClassVar[str]  # the model's only one
    special: ClassVar[tuple[str, ...]] = SPECIAL  # tokens that the model knows

    @classmethod
    def clean(cls, columns: Columns, data: Any, part: str) -> Columns:
        """Returns the lines of rows. A row of several lines is a document."""
        return {"text": list(chain.from_iterable(map(lines_of, columns["text"])))}

    def open(self, folder: Path | None) -> None:
        def texts() -> Iterator[str]:
            for columns in self.to_learn_from(self.recipe.tokenizer.sample_rows):
                yield from columns["text"]

        settings, made_of = self.recipe.tokenizer, [self.digest("train")]
        self.tokenizer = tokenizers.open_tokenizer(settings, self.kind, folder, texts, made_of)
        self.block_length = self.recipe.data.block_length
        self.padding = {"input_ids": self.tokenizer.pad_token_id, "labels": IGNORED_LABEL}
        self.made_of = [self.tokenizer.backend_tokenizer.to_str(), self.block_length]
        self._encoder = tokenizers.encoder_of(self.tokenizer)
        self._names = tokenizers.token_names(self.tokenizer)

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
            return {**sizes, "vocab_size": tokenizers.largest_size(recipe.tokenizer, cls.kind)}
        ids = {name: getattr(task.tokenizer, name) for name in cls.special}
        return {**sizes, **ids, "vocab_size": tokenizers.vocab_size(task.tokenizer)}

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins items; only a batch with padding has a mask, without which models are faster."""
        batch = super().collate(items)
        return {k: x for k, x in batch.items() if k != "attention_mask" or not bool(x.all())}

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        word = "word" if tokenizers.has_words(self.tokenizer) else "subword"
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
        labels = ([IGNORED_LABEL, *item["input_ids"][1:]] for item in items)
        return super().collate([{**x, "labels": of} for x, of in zip(items, labels, strict=True)])

    @classmethod
    def cost_lengths(cls, recipe: LanguageRecipe) -> dict[str, int]:
        return {"decoder": recipe.data.block_length}

    def save(self, folder: Path) -> None:
        super().save(folder)
        options = generation_options(self.recipe, self.tokenizer)
        GenerationConfig(**options).save_pretrained(folder)

    def evaluate(self, model: Any, part: str, evaluation: Any, each: Each) -> Outcome:
        """Computes the perplexity of a part, and has the model continue some of its lines."""
        lines = chain.from_iterable(rows["text"] for rows in self.rows[part].iter(1000))
        counted = ((len(line.split()), len(line.encode())) for line in lines)
        words, size = np.fromiter(counted, np.dtype((np.int32, 2))).T  # of each line
        nats, tokens, unknown = self._line_losses(model, part, evaluation.context, each)
        share = unknown.sum() / tokens.sum()
        remark = f"; {share:.1%} of the tokens are <unk>" if share else ""
        counts = {"word perplexity": (words + 1, "words and line ends")}
        if not tokenizers.has_words(self.tokenizer):  # of words, both perplexities are the same
            counts["token perplexity"] = (tokens, "subwords and line ends")
            if not share:  # the bytes of <unk> are not known
                counts["bits per byte"] = (size + 1, "bytes of UTF-8")
        starts, scores = passages(words), []
        for name, (count, unit) in counts.items():
            rows = np.add.reduceat([nats, count], starts, axis=1).T
            note = f"over {count.sum(dtype=int):,} {unit}{remark}"
            statistic, digits = ("bits", 3) if name == "bits per byte" else ("perplexity", 1)
            of = {"lower_is_better": True, "digits": digits, "note": note}
            scores.append(Score.of(name, rows, statistic, **of))
        return Outcome(scores=scores, samples=self._samples(model, part, evaluation, each, words))

    def _line_losses(self, model: Any, part: str, context: int | None, each: Each) -> np.ndarray:
        """Returns the nats of each line, its number of tokens and that of <unk>, `(3, lines)`."""
        items = self.stored(part)
        last_of = np.cumsum(items.lengths, dtype=np.int64)  # the last token of each block
        size, end = int(last_of[-1]), self.tokenizer.eos_token_id
        context = self.block_length // 2 if context is None else context
        stride = self.block_length - context
        # The first window predicts all that it can, any other `stride` tokens, the last one the
        # rest. Those between are read together.
        first = min(size, (context // stride + 1) * stride)
        rest = size - (size - first) % stride
        logits = (stride + 1) * model.config.vocab_size
        at_once = max(1, min(_BATCH_TOKENS // self.block_length, _LOGITS // logits))
        cuts = sorted({0, *range(first, rest, at_once * stride), rest, size})

        def losses(span: tuple[int, int]) -> np.ndarray:
            begin = max(0, span[0] - context)
            # Token 0 is the line end before the text; each block begins with the last of another.
            one, last = np.searchsorted(last_of, [begin, span[1]]).tolist()
            blocks = items.rows[one : last + 1]["input_ids"]
            read = np.concatenate([blocks[0][:1], *(block[1:] for block in blocks)])
            start = int(last_of[one]) - int(items.lengths[one])
            read = read[begin - start : span[1] + 1 - start]
            predicted = min(stride if span[0] else first, span[1] - span[0])
            length = min(len(read), context + predicted + 1)
            batch = torch.from_numpy(read).long().unfold(0, length, stride).to(model.device)
            with torch.no_grad():
                found = model(input_ids=batch, logits_to_keep=predicted + 1).logits[:, :-1]
            targets = batch[:, -predicted:].flatten()
            nats = F.cross_entropy(found.flatten(0, 1).float(), targets, reduction="none")
            ids = targets.cpu().numpy()
            line = np.append(0, np.cumsum(ids == end))  # of each token, and of the next
            figures = (nats.double().cpu(), np.ones(len(ids)), ids == self.tokenizer.unk_token_id)
            return np.stack([np.bincount(line[:-1], x, line[-1] + 1) for x in figures])

        total, at = np.zeros((3, len(self.rows[part]) + 1)), 0
        for sums in each(list(pairwise(cuts)), losses):  # the last line of one goes on in the next
            total[:, at : at + sums.shape[1]] += sums
            at += sums.shape[1] - 1
        return total[:, :-1]

    def _samples(
        self, model: Any, part: str, evaluation: Any, each: Each, words: np.ndarray
    ) -> list[Sample]:
        """Has the model continue the first halves of lines that are spread over a part."""
        recipe = self.recipe.model_copy(update={"evaluation": evaluation})
        room, halves = self.block_length - _new_tokens(recipe), []
        for line in spread(np.flatnonzero(words >= 8).tolist(), evaluation.samples):
            text = self.rows[part][line]["text"].split()
            middle = min(len(text) // 2, 32)
            prompt = " ".join(text[:middle])
            if len(self.tokenizer(prompt).input_ids) <= room:
                halves.append((prompt, " ".join(text[middle:])))

        def write(half: tuple[str, str]) -> Sample:
            prompt, rest = half
            (text,) = continued(model, self.tokenizer, [prompt], recipe)
            return Sample(
                given={"Prompt": prompt, "Text": rest}, made=text.partition("\n")[0].strip()
            )

        return each(halves, write)

    @classmethod
    def predict(cls, folder: Path, recipe: Any, model: Any, wish: Wish) -> Iterator[str]:
        """Yields continuations of prompts; each of a prompt's texts has a seed of its own."""
        wish.refuse(cls.name, "output")
        tokenizer, evaluation = tokenizers.read_tokenizer(folder, cls.kind), recipe.evaluation
        prompts = ["\n".join(map(str.strip, text.split("\n"))) for text in wish.lines(default=[""])]
        for seed in range(evaluation.seed, evaluation.seed + (wish.number or 1)):
            drawn = evaluation.model_copy(update={"seed": seed})
            of_seed = recipe.model_copy(update={"evaluation": drawn})
            for begin in range(0, len(prompts), _PROMPTS):
                some = prompts[begin : begin + _PROMPTS]
                texts = continued(model, tokenizer, some, of_seed)
                for prompt, text in zip(some, texts, strict=True):
                    yield (prompt + text).removesuffix("\n")


def passages(words: np.ndarray) -> np.ndarray:
    """Returns the first lines of documents, or of passages where there are few documents.

    From the number of words of each line: blank lines end a document; lines of a passage have 200
    words or more together, or a tenth of the words of a shorter text.
    """
    is_text = words > 0
    begins = np.flatnonzero(is_text[1:] & ~is_text[:-1]) + 1
    documents = [0, *begins[begins > is_text.argmax()].tolist()]
    if len(documents) >= LEAST_ITEMS:
        return np.array(documents)
    before = np.append(0, np.cumsum(words, dtype=np.int64))  # words before each line
    least = max(1, min(200, before[-1] / LEAST_ITEMS))
    starts, begin = [0], np.searchsorted(before, least)
    while begin < len(words) and before[-1] - before[begin] >= least:
        starts.append(int(begin))
        begin = np.searchsorted(before, before[begin] + least)
    return np.array(starts)


# --- generated text -----------------------------------------------------------------------------


def _new_tokens(recipe: LanguageRecipe) -> int:
    return recipe.evaluation.max_new_tokens or min(60, recipe.data.block_length // 2)


def generation_options(
    recipe: LanguageRecipe, tokenizer: PreTrainedTokenizerFast
) -> dict[str, Any]:
    """Returns the settings of a recipe as arguments of `generate()` and of `GenerationConfig`."""
    temperature, top_p = recipe.evaluation.temperature, recipe.evaluation.top_p
    options = {
        "max_new_tokens": _new_tokens(recipe),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": None,  # a text may have several lines
        "remove_invalid_values": True,  # of a model that diverged
        "do_sample": temperature > 0,
    }
    sampling = {"temperature": temperature, "top_k": 0, "top_p": top_p}
    return options | (sampling if temperature else {})


def continued(
    model: CausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], recipe: LanguageRecipe
) -> list[str]:
    """Returns the texts with which a model goes on from prompts, without the prompts.

    A prompt begins a line and may hold line ends; behind an empty one the model begins a text.

    Raises:
        ValueError: with what is written, a prompt is longer than the texts of the training.
    """
    batch = tokenizer(prompts, padding=True, return_tensors="pt").to(model.device)
    sizes, most = batch["attention_mask"].sum(1), recipe.data.block_length - _new_tokens(recipe)
    if (size := int(sizes.max())) > most:
        raise ValueError(
            f"INPUT has {shown(prompts[int(sizes.argmax())])} of {size} tokens, expected at most "
            f"{most}: with the new ones it has to fit into the block_length of the run, "
            f"{recipe.data.block_length}; shorten it, or set evaluation.max_new_tokens"
        )
    with torch.no_grad(), own_draws():
        torch.manual_seed(recipe.evaluation.seed)
        made = model.generate(**batch, **generation_options(recipe, tokenizer))

    def text(ids: Tensor) -> str:
        return tokenizer.decode(ids[ids != tokenizer.pad_token_id])

    # Decoded together with the prompt: a text by itself would lose its first space.
    pairs = zip(batch["input_ids"], made, strict=True)
    return [text(ids)[len(text(prompt)) :] for prompt, ids in pairs]
