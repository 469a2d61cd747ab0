"""Masks of attention: their meaning, their shapes, and one mask from all that a call is given.

A boolean mask is `True` where a key is not attended, a float mask is added to the logits, as in
`nn.MultiheadAttention`.
"""

import torch
from torch import Tensor

# A number in a float mask that is as low as this hides a key in every dtype: e^-1000 is 0 also in
# float64.
_HIDDEN_UP_TO = -1000.0


def boolean_mask(mask: Tensor) -> Tensor:
    """Where a mask lets nothing through: a boolean mask of the same shape."""
    return mask <= _HIDDEN_UP_TO if mask.is_floating_point() else mask


def real_positions(like: Tensor, padding: Tensor | None) -> Tensor:
    """1 at real positions and 0 at padding, `(batch, time)`, in the dtype of `like`."""
    real = torch.ones(like.shape[:2], dtype=like.dtype, device=like.device)
    return real if padding is None else real.masked_fill(padding, 0.0)


def causal_mask(
    queries: int, keys: int, offset: int = 0, device: torch.device | None = None
) -> Tensor:
    """Boolean `(queries, keys)`, `True` where key s lies in the future of query offset + t.

    >>> causal_mask(2, 3).int().tolist()
    [[0, 1, 1], [0, 0, 1]]
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(offset + 1)


def merge_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    heads: int,
    queries: int,
    keys: int,
    *,
    offset: int = 0,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor | None:
    """One mask that broadcasts to `(batch, heads, queries, keys)`, or None where all is attended.

    It is boolean, `True` = not attended, or a float mask of the dtype to add if either mask given
    was one. Query t is at position offset + t of the keys (the offset counts what a decoding cache
    holds).
    """
    hidden: Tensor | None = None
    added: Tensor | None = None
    sees_all = queries == 1 and offset >= keys - 1
    if is_causal and not sees_all:
        hidden = causal_mask(queries, keys, offset, device)
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask[:, None, None, :]  # (batch, 1, 1, keys)
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.unflatten(0, (-1, heads))  # (batch, heads, queries, keys)
    for mask in (key_padding_mask, attn_mask):
        if mask is not None and mask.dtype == torch.bool:
            hidden = mask if hidden is None else hidden | mask
        elif mask is not None:
            added = mask if added is None else added + mask
    if added is None:
        return hidden
    added = added.to(dtype)
    return added if hidden is None else added.masked_fill(hidden, float("-inf"))


def check_mask(name: str, mask: Tensor | None, *allowed: tuple[int, ...]) -> None:
    """Raises `ValueError` unless it is a boolean or float mask of one of these shapes."""
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"{name} has dtype {mask.dtype}, expected torch.bool (True = not attended) or a float "
            f"mask that is added to the logits; for a 0/1 mask of what to keep, pass `mask == 0`"
        )
    # An export takes sizes that are compared for equal: only those of as many dimensions are.
    if tuple(mask.shape) not in [shape for shape in allowed if len(shape) == mask.dim()]:
        shapes = " or ".join(map(str, dict.fromkeys(allowed)))
        raise ValueError(f"{name} has shape {tuple(mask.shape)}, expected {shapes}")
