"""The outputs of a model on one input, whole and without each of its parts, for a browser."""

import base64
import zlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.ops import IGNORED_LABEL
from headwise.report.explorer_input import ModelInput

_MOST_PROBABLE = {"tokens": 5, "classes": 10}  # how many are shown at each position


class Outputs:
    """The outputs of a model on one input: of the whole model, and then without each part.

    A model of tokens or classes says how probable each is, and its loss is -log p of the true ones.
    Of other outputs the loss is the squared error. Without true labels, the predictions of
    the whole model are the labels.
    """

    def __init__(self, model: Any, model_input: ModelInput) -> None:
        self.model, self.model_input = model, model_input
        config = getattr(model, "config", None)
        self.is_encoder_decoder = getattr(config, "is_encoder_decoder", False)
        self.is_causal = getattr(model, "can_generate", bool)() and not self.is_encoder_decoder
        self.is_known = model_input.labels is not None and model_input.is_true
        self.targets: Tensor | None = None
        self.losses: list[float] = []
        self.best: list[Any] = []  # of each pass the most probable ones, with their numbers
        self.numbers: list[float] = []  # of each pass, if the output is a single one

    def add(self, output: Any) -> None:
        """Adds what the page shows of a model's output; the first is that of the whole model."""
        logits = getattr(output, "logits", None)
        values = logits if logits is not None else getattr(output, "output", output)
        values = values if isinstance(values, Tensor) else values[0]
        reads_tokens = any(name.endswith("input_ids") for name in self.model_input.batch)
        self.kind = "tokens" if values.dim() == 3 else "classes"
        if logits is None or values.shape[1:] == (1,) or (values.dim() == 3 and not reads_tokens):
            self.kind = "numbers"
        values = values[0].float().cpu()
        if not values.isfinite().all():
            raise ValueError(
                "the output of the model has numbers that are not finite, expected finite ones: "
                "the model has diverged, or its numbers are too large for its precision"
            )
        if self.kind == "numbers":
            self._add_numbers(values)
        else:
            self._add_logits(values.view(-1, values.size(-1)))

    def _add_numbers(self, values: Tensor) -> None:
        if self.targets is None:
            labels = self.model_input.labels
            self.targets = values if labels is None else labels.cpu().float().view_as(values)
        errors = (values - self.targets).square()
        if values.dim() == 2:  # of frames, some of which may be padding
            errors = errors[self.targets != IGNORED_LABEL]
        self.losses.append(float(errors.mean()))
        if values.numel() == 1:
            self.numbers.append(float(values))

    def _add_logits(self, logits: Tensor) -> None:
        """Adds logits, `(positions, tokens)`, or of classes `(1, classes)`."""
        problem = getattr(self.model.config, "problem_type", None)
        is_multi_label = problem == "multi_label_classification"
        log_probs = F.logsigmoid(logits) if is_multi_label else logits.log_softmax(-1)
        if self.targets is None:
            self.targets = self._targets(log_probs)
        self.width = logits.size(-1)
        is_asked = self.targets != IGNORED_LABEL
        losses = -log_probs.gather(-1, self.targets.clamp(min=0).unsqueeze(-1))[:, 0]
        self.losses.append(float(losses[is_asked].mean()) if is_asked.any() else 0.0)
        self.best.append(log_probs.topk(min(_MOST_PROBABLE[self.kind], log_probs.size(-1))))

    def _targets(self, log_probs: Tensor) -> Tensor:
        """Returns the label of each position: the true one, or the prediction of the model."""
        labels, predicted = self.model_input.labels, log_probs.argmax(-1)
        if labels is None or labels.is_floating_point():  # of several classes at once
            self.is_known = False
            stack = "decoder_" if self.is_encoder_decoder else ""
            mask = self.model_input.batch.get(f"{stack}attention_mask")
            if mask is None or mask.numel() != len(predicted):  # classes have no padding
                return predicted
            return predicted.masked_fill(mask.cpu().view(-1) == 0, IGNORED_LABEL)
        targets = labels.cpu().view(-1).long()
        if self.is_causal:  # the label of the next position
            targets = F.pad(targets[1:], (0, 1), value=IGNORED_LABEL)
        return targets if self.is_known else predicted.where(targets != IGNORED_LABEL, targets)

    def _has_token_classes(self) -> bool:
        """Says whether the model classifies each token, instead of predicting tokens."""
        config = self.model.config
        labels, tokens = getattr(config, "num_labels", None), getattr(config, "vocab_size", None)
        return self.width == labels and self.width != tokens

    def payload(self) -> dict[str, Any]:
        """Returns all outputs, each time that of the whole model first."""
        truth = "what is true" if self.is_known else "what the whole model says"
        payload = {"kind": self.kind, "is_known": self.is_known, "losses": self.losses}
        if self.kind == "numbers":
            measure = f"Loss: squared difference to {truth}"
            return {**payload, "measure": measure, "numbers": self.numbers}
        assert self.targets is not None
        if self.kind == "classes" or self._has_token_classes():
            names = getattr(self.model.config, "id2label", None) or {}
        else:
            names = list(self.model_input.stacks.values())[-1].names
        ids = torch.stack([best.indices for best in self.best])  # (passes, positions, best)
        shares = torch.stack([best.values.exp() for best in self.best])
        # Of a large vocabulary the page has the names alone that it shows, with numbers of its own.
        shown_ids = torch.cat([ids.flatten(), self.targets.clamp(min=0)])
        shown_ids, numbers = shown_ids.unique(return_inverse=True)
        page_ids, page_targets = numbers.split([ids.numel(), self.targets.numel()])
        return {
            **payload,
            "measure": f"Loss: mean of −log p of {truth}, in nats",
            "is_next": self.is_encoder_decoder or self.is_causal,
            "over": list(self.model_input.stacks)[-1],
            "names": [names.get(token, str(token)) for token in shown_ids.tolist()],
            "ids": pack_array(page_ids.view(ids.shape).numpy(), "uint32"),
            "shares": pack_array(shares.numpy(), "float32"),
            "true": page_targets.masked_fill(self.targets < 0, -1).tolist(),
        }


def pack_array(array: np.ndarray, kind: str = "root") -> dict[str, Any]:
    """Packs an array for a browser: deflated and in base64, with its shape.

    Weights of attention, which are many, take a byte each, of the root of their share of the
    largest, so that small ones have finer steps; the byte of 0 is 128. Other kinds are NumPy's.

    >>> pack_array(np.array([[1.0, 0.0], [0.25, 0.5]]))["shape"]
    [2, 2]
    """
    scale = float(np.abs(array).max(initial=0.0)) or 1.0
    if kind == "root":
        roots = np.sign(array) * np.sqrt(np.abs(array) / scale)
        data = (128 + 127 * roots).round().astype(np.uint8)
    else:
        data = array.astype(np.dtype(kind).newbyteorder("<"))
    text = base64.b64encode(zlib.compress(data.tobytes())).decode("ascii")
    return {"shape": list(array.shape), "kind": kind, "scale": scale, "data": text}
