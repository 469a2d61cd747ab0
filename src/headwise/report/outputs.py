"""What a model makes of one input, as it is and without each of its parts, packed for a browser."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.ops.labels import IGNORED_LABEL
from headwise.report.inputs import UNKNOWN, Given, packed

_BEST = 5  # tokens that are shown at each position
_CLASSES = 10


class Outputs:
    """The outputs of a model on one input: of the whole model, and then without each part.

    A model of tokens or classes says how probable each is, and its loss is -log p of the true ones.
    Of other outputs the loss is the squared error at each position, or of a single number. Where
    nothing is known to be true, that is taken for true which the whole model says.
    """

    def __init__(self, model: Any, given: Given) -> None:
        self.given, self.config = given, getattr(model, "config", None)
        is_pair = getattr(self.config, "is_encoder_decoder", False)
        self.is_shifted = getattr(model, "can_generate", bool)() and not is_pair
        self.is_next = is_pair or self.is_shifted
        self.true: Tensor | None = None
        self.losses: list[float] = []
        self.ids: list[Tensor] = []
        self.shares: list[Tensor] = []
        self.real: list[Tensor] = []

    def add(self, out: Any) -> None:
        """Adds the output of a forward pass."""
        logits = getattr(out, "logits", None)
        if logits is None:
            logits = out if isinstance(out, Tensor) else getattr(out, "output", None)
            logits = out[0] if logits is None else logits
            self.kind = "numbers"
        else:
            wide = logits.dim() == 3
            labels = self.given.labels
            is_number = logits.shape[1:] == (1,) or (labels is not None and labels.dim() == 3)
            self.kind = "numbers" if is_number else "tokens" if wide else "classes"
            if wide and not any(name.endswith("input_ids") for name in self.given.batch):
                self.kind = "numbers"
        logits = logits[0].float().cpu()
        if not logits.isfinite().all():
            raise ValueError(
                "the output of the model has numbers that are not finite, expected finite ones: "
                "the model has diverged, or its numbers are too large for its precision"
            )
        if logits.dim() == 1:
            logits = logits.unsqueeze(0)  # (positions or 1, tokens, classes or width)
        if self.kind == "numbers":
            self._add_numbers(logits)
        else:
            self._add_shares(logits)

    def _add_shares(self, logits: Tensor) -> None:
        several = getattr(self.config, "problem_type", None) == "multi_label_classification"
        logs = F.logsigmoid(logits) if several else logits.log_softmax(-1)
        if self.true is None:
            self.true = self._true(logs)
        is_asked = self.true != IGNORED_LABEL
        own = logs.gather(-1, self.true.clamp(min=0).unsqueeze(-1))[:, 0]
        self.losses.append(float(-own[is_asked].mean()) if is_asked.any() else 0.0)
        best = logs.topk(min(_CLASSES if self.kind == "classes" else _BEST, logs.size(-1)))
        self.ids.append(best.indices)
        self.shares.append(best.values.exp())
        self.real.append(own.exp().masked_fill(~is_asked, 0.0))

    def _true(self, logs: Tensor) -> Tensor:
        """Returns what is true at each position; where it is unknown, what the whole model says."""
        labels, said = self.given.labels, logs.argmax(-1)
        if labels is None or labels.is_floating_point():  # of several classes at once
            self.is_known = False
            return said
        self.is_known = not self.given.is_own and not bool((labels == UNKNOWN).any())
        true = labels.cpu().view(-1).long()
        if self.is_shifted:  # the label of the next position
            true = F.pad(true[1:], (0, 1), value=IGNORED_LABEL)
        return torch.where(true == UNKNOWN, said, true)

    def _add_numbers(self, values: Tensor) -> None:
        if self.true is None:
            labels = self.given.labels
            self.is_known = labels is not None
            self.true = values if labels is None else labels.cpu().float().reshape(values.shape)
        error = (values - self.true).square().mean(-1)
        self.losses.append(float(error.mean()))
        self.real.append(error)
        if values.numel() == 1:
            self.shares.append(values[0])

    def payload(self) -> dict[str, Any]:
        """Returns all outputs as arrays, whose first entry is the whole model."""
        found = {"kind": self.kind, "is_known": self.is_known, "losses": self.losses}
        found["real"] = packed(torch.stack(self.real).numpy(), "float32")
        found["is_next"], found["over"] = self.is_next, list(self.given.stacks)[-1]
        own = "what it writes itself" if self.given.is_own else "what the whole model says"
        what = "what is true" if self.is_known else own
        if self.kind == "numbers":
            measure = f"Loss: squared difference to {what}"
            return {**found, "measure": measure, "numbers": [float(each) for each in self.shares]}
        assert self.true is not None
        found["measure"] = f"Loss: mean of −log p of {what}, in nats"
        ids = torch.stack(self.ids)  # (passes, positions, best)
        used, places = torch.cat([ids.flatten(), self.true.clamp(min=0)]).unique(
            return_inverse=True
        )
        names = self._names()
        return {
            **found,
            "names": [names.get(each, str(each)) for each in used.tolist()],
            "ids": packed(places[: ids.numel()].view(ids.shape).numpy(), "uint32"),
            "shares": packed(torch.stack(self.shares).numpy()),
            "true": places[ids.numel() :].masked_fill(self.true < 0, -1).tolist(),
        }

    def _names(self) -> Mapping[int, str]:
        if self.kind == "classes":
            return getattr(self.config, "id2label", None) or {}
        return list(self.given.stacks.values())[-1].names
