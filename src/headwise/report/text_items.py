"""A text file as the items of a plain model: a line is an item, whose loss is measured."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.data.load import lines
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.report.plain_models import longest_input, task_of
from headwise.tasks.scores import spread
from headwise.training.loss import loss_and_labels

MOST_TOKENS = 20_000  # that are read of a file: an analysis makes a pass for each head
_HIDDEN = 7  # one token in so many is hidden from a masked language model
_SECOND = {"translation": "its translation", "classification": "its class"}


class TextItems:
    """The lines of a text file, as a model of transformers reads them.

    A language model predicts each token behind the first of a line, a masked one the tokens that
    are hidden from it, one in seven. For a translation model a line is source, tab, target; for a
    classifier text, tab, class. Empty lines are passed over; long ones are cut.

    Attributes:
        batches: arguments of the model's forward, with the labels of its loss: a line each.
        in_words: how much of the file is read.

    Raises:
        ValueError: the file holds no such lines.
    """

    def __init__(self, model: Any, tokenizer: Any, file: Path) -> None:
        self.model, self.tokenizer, self.file = model, tokenizer, file
        self.task = task_of(model)
        self.longest = longest_input(model, tokenizer)
        self.cut, self.tokens, self.rest = 0, 0, ""
        self.batches = list(self._read())
        if not self.batches:
            raise ValueError(f"{file} is empty, expected a text with an item in each line")
        is_predicted = self.task == "language-modelling"
        if is_predicted and all(batch["input_ids"].numel() < 2 for batch in self.batches):
            raise ValueError(
                f"no line of {file} has a token after the first, which is not predicted; expected "
                f"lines of several tokens"
            )
        cut = f"; {self.cut:,} lines are cut to {self.longest:,}" if self.cut else ""
        size = f"{len(self.batches):,} lines, {self.tokens:,} tokens"
        self.in_words = f"{file.name}: {size}{self.rest}{cut}"

    @torch.no_grad()
    def losses(self) -> Tensor:
        """The total loss of each line, by the model as it is, and how many labels it has."""
        rows = []
        for batch in self.batches:
            first = int(self.task == "language-modelling")  # it is not predicted
            count = int((batch["labels"].flatten()[first:] != IGNORED_LABEL).sum())
            total = 0.0
            if count and isinstance(self.model, HeadwiseModel):  # without what systems add to it
                total = float(loss_and_labels(self.model, batch)[0])
            elif count:
                given = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
                total = float(self.model(**given).loss) * count
            rows.append((total, count))
        return torch.tensor(rows, dtype=torch.float64)  # (lines, 2)

    def _read(self) -> Iterator[dict[str, Tensor]]:
        for number, line in enumerate(lines(str(self.file)), 1):
            if not line.strip():
                continue
            if self.tokens >= MOST_TOKENS:
                self.rest = "; the rest of the file is left out"
                return
            text, _, second = line.partition("\t")
            if self.task in _SECOND and not second.strip():
                raise ValueError(
                    f"{self.file}, line {number}: expected a text, a tab and {_SECOND[self.task]}"
                )
            cut = self.cut
            ids = self._encoded(text if self.task in _SECOND else line)
            self.tokens += len(ids)
            ids, labels = self._with_labels(ids, second.strip())
            self.cut = min(self.cut, cut + 1)  # a line counts once, also where it is a pair
            batch = {"input_ids": torch.tensor([ids])}
            yield batch if labels is None else {**batch, "labels": torch.tensor([labels])}

    def _with_labels(self, ids: list[int], second: str) -> tuple[list[int], Any]:
        if self.task == "language-modelling":
            return ids, ids
        if self.task == "translation":
            return ids, self._encoded(text_target=second)
        if self.task == "classification":
            return ids, self._class(second)
        if self.task == "masked-language-modelling":
            special = set(self.tokenizer.all_special_ids)
            words = [place for place, token in enumerate(ids) if token not in special]
            hidden = set(spread(words[len(words) // (2 * _HIDDEN) :], -(-len(words) // _HIDDEN)))
            mask = self.tokenizer.mask_token_id
            labels = [token if i in hidden else IGNORED_LABEL for i, token in enumerate(ids)]
            return [mask if i in hidden else token for i, token in enumerate(ids)], labels
        return ids, None

    def _encoded(self, *text: str, **target: str) -> list[int]:
        ids: list[int] = self.tokenizer(*text, **target, verbose=False)["input_ids"]
        if self.longest is not None and len(ids) > self.longest:
            self.cut += 1
            limits: dict[str, Any] = {"truncation": True, "max_length": self.longest}
            ids = self.tokenizer(*text, **target, **limits)["input_ids"]
        return ids

    def _class(self, name: str) -> int:
        classes = self.model.config.id2label.items()
        known = {str(key): int(number) for number, label in classes for key in (number, label)}
        if name not in known or len(classes) < 2:
            raise ValueError(
                f"{self.file} has the class {name!r}, expected one of {', '.join(known)}, and a "
                f"model of several classes"
            )
        return known[name]
