"""The road of data as tests walk it: from rows of their own to parts, items, batches, positions.

Tests of data name a task, the source in which its rows stand, and the rows. How a recipe names
data, who reads them and what a task is made of is known here and nowhere else.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import torch
from support.data_files import LABELLED, PARTS, RATE, TASKS, TEXTS, text_file, written
from transformers import AutoTokenizer

from headwise.data.stream import Stream, StreamBatches
from headwise.recipes.recipe import load_recipe, task_class
from headwise.training.batches import Batches

# Data that need no files; small where they can be.
_DOCUMENTED = {"packages": ["logging", "email"]}
BUILT_IN: dict[str, dict[str, Any]] = {
    "translation": {"path": "interface-strings", "train_fraction": 0.05},
    "language-modelling": {"path": "pydoc-topics", "train_fraction": 0.1},
    "masked-language-modelling": {"path": "package-docs", "options": _DOCUMENTED}
    | {"train_fraction": 0.1},
    "classification": {"path": "docstrings", "options": _DOCUMENTED, "max_length": 64},
    "probing": {"path": "generated", "options": {"num_bins": 3, **_DOCUMENTED}, "max_length": 64},
    "images": {"path": "digits", "train_fraction": 0.1},
    "speech-enhancement": {"path": "generated"}
    | {"options": {"speakers": 4, "utterances": 6, "seconds": 0.5}}
    | {"rate": RATE, "seconds": 0.5, "validation_fraction": 0.2, "test_fraction": 0.2},
}
OWN: dict[str, dict[str, Any]] = {  # settings of rows of one's own
    "classification": {"max_length": 32},
    "probing": {"max_length": 32},
    "images": {"size": 4, "mode": "grey"},
    "speech-enhancement": {"rate": RATE, "seconds": 0.5},
    **{task: {"block_length": 16} for task in TEXTS},
}
SOURCES = {  # where rows of a task may stand
    **dict.fromkeys(TASKS, ("files", "hub")),
    "probing": ("files",),
}
_PLACE = TemporaryDirectory(prefix="headwise-road-")


def in_each_part(rows: Any) -> dict[str, Any]:
    """Returns rows, or what names them, as those of all parts: nothing is divided off then."""
    return dict.fromkeys(PARTS, rows)


def _keys(task: str, source: str, places: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the data of a recipe, given what names each part."""
    if source == "hub":
        splits = {part: places.get(part) for part in ("train", "validation", "test")}
        columns = {
            "translation": {"source": "texts.en", "target": "texts.fr"},
            "classification": {"text": "sentence"},
        }
        return {"path": str(folder), "split": splits, "columns": columns.get(task, {})}
    if task == "probing":
        name = "generated" if source == "text" else "senteval"
        return {"path": name, "options": {"file": str(places["train"])}}
    sides = {"translation": ("source", "target"), "speech-enhancement": ("noisy", "clean")}
    if task in sides:
        places = {
            part: dict(zip(sides[task], map(str, place), strict=True))
            for part, place in places.items()
        }
    columns = {"text": "sentence"} if task == "classification" else {}
    return {"files": json.loads(json.dumps(places, default=str)), "columns": columns}


def road(
    task: str,
    source: str,
    rows: dict[str, Any] | None = None,
    *,
    held_out: int | None = None,
    data: dict[str, Any] | None = None,
    **recipe: Any,
) -> "Road":
    """Returns a task on rows of its parts, `train` and those that are given, in files of their own.

    In place of the rows of a part, the paths of its files may be given. With `held_out`, the
    training split is a stream; so many rows are the validation split and the next ones the
    test split. `source` is one of `SOURCES`, or "built-in", which has no rows, or "text", of whose
    lines probes are made. Rows of three texts are a pair with its label.
    """
    folder = Path(mkdtemp(dir=_PLACE.name))
    keys = dict(BUILT_IN[task])
    if rows is not None:
        if task == "probing" and source == "files" and not isinstance(rows["train"], Path):
            short = {"train": "tr", "validation": "va", "test": "te"}
            lines = [
                f"{short[p]}\t{label}\t{text}" for p, pairs in rows.items() for text, label in pairs
            ]
            rows = {"train": text_file(folder / "probe.txt", lines)}
        places = {part: written(task, source, part, x, folder) for part, x in rows.items()}
        keys = {**_keys(task, source, places, folder), **OWN.get(task, {})}
        if task == "classification" and isinstance(rows["train"], list):
            keys["columns"] |= {"pair": "other"} if len(rows["train"][0]) == 3 else {}
    if held_out is not None:
        keys |= {"streaming": True, "held_out": held_out, "window": 16}
        keys |= {"classes": ["even", "odd"]} if task == "classification" else {}
    data = data or {}
    merged = {
        name: {**keys.get(name, {}), **data[name]}
        for name in ("columns", "split", "files", "options")
        if name in data
    }
    defaults = {
        "task": task,
        "training": {"max_steps": 1},
        "data": {**keys, **data, **merged},
        "model": {"embed_dim": 16, "num_heads": 2, "ffn_dim": 16},
    }
    if task not in ("images", "speech-enhancement"):
        defaults["tokenizer"] = {"vocab_size": 300}
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({**defaults, **recipe}, default=str))  # JSON is YAML
    settings = load_recipe(str(path)).recipe
    return Road(task, settings, task_class(task)(settings))


@dataclass
class Road:
    """A task on its data: the rows of each part, batches of them, and what is told of both."""

    name: str
    recipe: Any
    task: Any

    def again(self) -> "Road":
        """The same data, prepared again, as another process does."""
        return Road(self.name, self.recipe, task_class(self.name)(self.recipe))

    def model(self) -> torch.nn.Module:
        """A model of the recipe, with random weights."""
        return self.task.build_model(self.recipe)

    def network(self) -> torch.nn.Module:
        """A model whose random weights are so large that its predictions differ."""
        torch.manual_seed(1)
        model = self.model().eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        return model

    def items(self, part: str = "train") -> Any:
        """The encoded items of a part."""
        return self.task.splits[part]

    def batch(self, part: str, indices: Any, epoch: int = 0) -> dict[str, torch.Tensor]:
        """Items of a part, padded to one length, as they are drawn in an epoch."""
        items = self.items(part)
        if hasattr(items, "set_epoch"):
            items.set_epoch(epoch)
        return self.task.collate([items[index] for index in indices])

    def rows(self, part: str = "train", epoch: int = 0) -> list[Any]:
        """What each item of a part holds, see `rows_of`."""
        return self.rows_of(self.batch(part, range(len(self.items(part))), epoch))

    def rows_of(self, batch: dict[str, torch.Tensor]) -> list[Any]:
        """What stands in each row of a batch, without its padding.

        Of pairs both texts; of labelled texts the text and the label; of running text its tokens,
        those before anything was masked; of images the pixels as bytes; of speech the noisy and
        the clean frames as bytes.
        """
        labels = batch["labels"]
        if self.name == "images":
            palette = self.task.palette
            pixels = palette.decode(batch["input_ids"])
            return [image[..., : palette.colors.shape[1]].tobytes() for image in pixels]
        mask = batch.get("attention_mask", torch.ones(labels.shape[:2], dtype=torch.long)).bool()
        if self.name == "speech-enhancement":
            return [
                tuple(x[i][mask[i]].numpy().tobytes() for x in (batch["inputs"], labels))
                for i in range(len(labels))
            ]
        ids = batch["input_ids"]
        if self.name == "translation":
            return [
                (self.lines(source[real])[0], self.lines(target[target != -100], "target")[0])
                for source, real, target in zip(ids, mask, labels, strict=True)
            ]
        if self.name in LABELLED:
            names = self.task.classes
            return [
                (*filter(None, self.lines(row[real])), names[int(y)] if names else float(y))
                for row, real, y in zip(ids, mask, labels, strict=True)
            ]
        if self.name == "masked-language-modelling":
            ids = torch.where(labels == -100, ids, labels)
            return [tuple(row[real].tolist()[1:]) for row, real in zip(ids, mask, strict=True)]
        return [tuple(row[row != -100].tolist()) for row in labels]

    def text(self, part: str = "train") -> list[str]:
        """The lines of running text, which its items hold one after another.

        In masked language modelling blank lines only divide documents, and are left out.
        """
        lines = self.lines(torch.tensor([token for row in self.rows(part) for token in row]))
        return list(filter(None, lines)) if self.name == "masked-language-modelling" else lines

    @cached_property
    def tokenizers(self) -> dict[str, Any]:
        """The tokenizer that a run saves beside its model, as transformers reads it."""
        with TemporaryDirectory() as folder:
            self.task.save(Path(folder))
            target = Path(folder, "target")
            return {
                "source": AutoTokenizer.from_pretrained(folder),
                "target": AutoTokenizer.from_pretrained(target if target.exists() else folder),
            }

    def lines(self, ids: torch.Tensor, side: str = "source") -> list[str]:
        """The lines of tokens, each of which ends in the token of an end."""
        tokenizer = self.tokenizers[side]
        lines: list[list[int]] = [[]]
        for token in ids.tolist():
            if token == tokenizer.eos_token_id:
                lines.append([])
            elif token not in (tokenizer.pad_token_id, tokenizer.bos_token_id):
                lines[-1].append(token)
        ended = lines[:-1] if not lines[-1] else lines
        return [tokenizer.decode(line).strip() if line else "" for line in ended]

    def told(self) -> tuple[dict[str, int], int]:
        """How many rows the facts on the data name: of each part, and left out of all."""
        facts = self.task.facts
        kept = {part: facts[part]["rows"] for part in PARTS}
        return kept, sum(facts[part].get("left out", 0) for part in PARTS)

    # --- batches ------------------------------------------------------------------------------

    def size(self, batch: dict[str, torch.Tensor]) -> int:
        """What a batch takes of its budget: the number of rows times the longest of them."""
        x = batch.get("input_ids", batch.get("inputs"))
        longest = x.size(1) - (self.name == "language-modelling")  # one token is before the block
        if self.name == "translation":
            longest = max(longest, batch["labels"].size(1))
        return len(x) * longest

    def batches(
        self, budget: int, position: Any = None, *, seed: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[tuple[int, dict[str, torch.Tensor], Any]]:
        """Yields the batches of one of the processes that train, without an end.

        Each comes with its epoch (pass over a stream) and the position behind it, from which
        another call goes on.
        """
        share = {"seed": seed, "rank": rank, "world": world}
        train, collate = self.task.splits["train"], self.task.collate
        is_stream = isinstance(train, Stream)
        kind = StreamBatches if is_stream else Batches
        batches = kind(train, collate, budget, **share)
        if position is not None:
            batches.position = position
        for batch in batches:
            behind = batches.position
            epoch = behind["passes"] if is_stream else (behind - 1) // batches.per_epoch
            yield epoch, batch, behind

    def epoch(self, number: int, budget: int, **share: int) -> list[dict[str, torch.Tensor]]:
        """The batches of one epoch."""
        from_epoch = dropwhile(lambda drawn: drawn[0] < number, self.batches(budget, **share))
        return [batch for _, batch, _ in takewhile(lambda drawn: drawn[0] == number, from_epoch)]


class _Lengths:
    """Items that are known by their lengths alone: each is its own index."""

    def __init__(self, lengths: Any) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> int:
        return index

    def set_epoch(self, epoch: int) -> None:
        """They are the same in all epochs."""


def index_batches(lengths: Any, budget: int, *, epoch: int = 0, **share: Any) -> list[list[int]]:
    """The indices of items of these lengths, in the batches of one process in one epoch."""
    return list(Batches(_Lengths(lengths), list, budget, **{"seed": 0, **share}).epoch(epoch))


def waves_of(own: Road, part: str, index: int, *, whole: bool = True) -> tuple[Any, Any]:
    """The noisy and the clean waveform of an item of speech: what is scored, or what is seen."""
    items = own.items(part)
    if whole:
        return items.piece_waves(index)
    draw = np.random.default_rng((*items.seed, items.epoch, index))
    return items.item_waves(items.rows[index], draw)
