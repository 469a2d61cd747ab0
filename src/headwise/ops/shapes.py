"""Checks of the inputs of attentions and models, whose errors say how to mend them."""

import torch
from torch import Tensor

from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.twins import is_transformed


def refuse_nested(name: str, x: Tensor) -> None:
    """Raises `ValueError` for a nested (jagged) tensor."""
    if x.is_nested:
        raise ValueError(
            f"{name} is a nested tensor, expected a padded one: pad it, for instance with "
            f"{name}.to_padded_tensor(0), and say where the padding is (key_padding_mask in "
            f"attention, attention_mask in models)"
        )


def check_tensor(name: str, x: object) -> None:
    """Raises `ValueError` for anything but a tensor."""
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{name} is of type {type(x).__name__}, expected a tensor; torch.tensor(...) makes one "
            f"of lists and arrays"
        )


def check_sequences(name: str, x: Tensor, width: int) -> None:
    """Raises `ValueError` unless a tensor is `(batch, time, width)`."""
    check_tensor(name, x)
    refuse_nested(name, x)
    if not x.is_floating_point():
        raise ValueError(
            f"{name} has dtype {x.dtype}, expected a float tensor (batch, time, {width}): embed "
            f"tokens, or convert numbers with {name}.float()"
        )
    if x.dim() != 3 or x.size(-1) != width:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, expected (batch, time, {width})"
            + ("; add a batch dimension with unsqueeze(0)" if x.dim() == 2 else "")
        )


def check_tokens(name: str, ids: Tensor, vocabulary: int | None) -> None:
    """Raises `ValueError` unless tokens are integers `(batch, time)` within the vocabulary."""
    check_tensor(name, ids)
    refuse_nested(name, ids)
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name} has dtype {ids.dtype}, expected torch.int64: the ids of tokens; convert it "
            f"with {name}.long()"
        )
    if ids.dim() != 2:
        raise ValueError(
            f"{name} has shape {tuple(ids.shape)}, expected (batch, time)"
            + ("; add a batch dimension with unsqueeze(0)" if ids.dim() == 1 else "")
        )
    if vocabulary is not None and can_be_looked_at(ids):
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"{name} has the token {low if low < 0 else high}, expected 0 to {vocabulary - 1}: "
                f"use the tokenizer that belongs to the model, or a model with a larger vocabulary"
            )


def check_labels(labels: Tensor, shape: tuple[int, ...], classes: int | None) -> None:
    """Raises `ValueError` unless labels have a shape and are classes (numbers if None), or -100."""
    check_tensor("labels", labels)
    if tuple(labels.shape) != shape:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}, expected {shape}: a label for each item that "
            f"is predicted, {IGNORED_LABEL} where none is"
        )
    if classes is None:
        return
    if labels.dtype != torch.int64:
        raise ValueError(
            f"labels has dtype {labels.dtype}, expected torch.int64, 0 to {classes - 1}; convert "
            f"it with labels.long()"
        )
    if can_be_looked_at(labels):
        real = labels[labels != IGNORED_LABEL]
        wrong = real[(real < 0) | (real >= classes)]
        if len(wrong):
            raise ValueError(
                f"labels has {int(wrong[0])}, expected 0 to {classes - 1}, or {IGNORED_LABEL} "
                f"where nothing is predicted"
            )


def check_token_mask(name: str, mask: Tensor | None, batch: int, time: int | None) -> None:
    """Raises `ValueError` unless a mask of tokens is None, or 1 and 0 of shape `(batch, time)`."""
    if mask is None:
        return
    check_tensor(name, mask)
    if mask.dim() != 2 or mask.size(0) != batch or (time is not None and mask.size(1) != time):
        expected = (batch, "time" if time is None else time)
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, expected (batch, time) = {expected}, 1 at "
            f"tokens and 0 at padding; cached positions count too"
        )
    # A float mask may be one to add to logits, which means the opposite: a GPU is waited for.
    as_float = mask.is_floating_point()
    if mask.dtype == torch.bool or not can_be_looked_at(mask, may_wait=as_float):
        return
    wrong = mask[(mask != 0) & (mask != 1)]
    if len(wrong) or (as_float and not mask.any()):
        found = f"has {wrong[0].item():g}" if len(wrong) else "is 0.0 everywhere"
        raise ValueError(
            f"{name} {found}, expected 1 at tokens and 0 at padding, as a tokenizer gives it; of a "
            f"mask that is added to logits, give `mask == 0`"
        )


def can_be_looked_at(x: Tensor, may_wait: bool = False) -> bool:
    """Whether values can be read: at no cost, or with `may_wait` though the host waits for a GPU.

    A compiler cannot read them, nor a CUDA graph that is being captured.
    """
    if type(x) is not Tensor or not x.numel() or x.device.type == "meta":
        return False
    if torch.compiler.is_compiling() or is_transformed():
        return False
    if x.device.type == "cpu":
        return True
    return may_wait and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
