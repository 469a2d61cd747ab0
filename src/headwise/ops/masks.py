"""Masks of attention: what users pass in, merged into the one mask that attention needs.

Everywhere in headwise a mask means what it means in `torch.nn.MultiheadAttention`: a boolean
`True` is *not* attended; a float mask is added to the attention logits.
"""

import torch
from torch import Tensor

from headwise.ops.shapes import check_sequences, check_tensor

# e^-1000 is 0 in every dtype, also in float64, whose least number is e^-745.
_HIDES = -1000.0


def padding_positions(key_padding_mask: Tensor | None) -> Tensor | None:
    """Boolean `(batch, time)`, `True` at padding, from a boolean or a float padding mask.

    `torch.nn.TransformerEncoderLayer` hands its attention a float mask with -inf at padding.
    """
    return None if key_padding_mask is None else blocks(key_padding_mask)


def real_positions(like: Tensor, padding: Tensor | None) -> Tensor:
    """1 at real positions and 0 at padding, `(batch, time)`, in the dtype of `like`."""
    real = torch.ones(like.shape[:2], dtype=like.dtype, device=like.device)
    return real if padding is None else real.masked_fill(padding, 0.0)


def check_mask(name: str, mask: Tensor | None) -> None:
    """Raise `ValueError` unless `mask` is None or a boolean or float tensor, of whatever shape."""
    if mask is None:
        return
    check_tensor(name, mask)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"{name} has dtype {mask.dtype}, expected torch.bool (True = not attended) or a float "
            f"mask that is added to the logits; for a 0/1 mask of what to keep, pass `mask == 0`"
        )
    if not mask.dim():
        raise ValueError(
            f"{name} is a single value, expected an entry for each position; leave it out if all "
            f"are attended"
        )


def check_padding_mask(name: str, mask: Tensor | None, batch: int, time: int) -> None:
    """Raise `ValueError` unless `mask` is None or a boolean or float `(batch, time)` tensor."""
    if mask is None:
        return
    check_mask(name, mask)
    if mask.shape != (batch, time):
        hint = (
            " (it is laid out as (time, batch): headwise puts the batch first; build "
            "torch.nn's layers with batch_first=True)"
            if mask.shape == (time, batch)
            else ""
        )
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, expected (batch, time) = "
            f"({batch}, {time}){hint}"
        )


def check_inputs(
    widths: tuple[int, int, int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    query_padding_mask: Tensor | None,
) -> None:
    """Raises `ValueError` unless sequences have these widths, and fit one another.

    How many keys there are in all is not known yet, nor whether `key_padding_mask` fits them.
    """
    for name, x, width in zip(("query", "key", "value"), (query, key, value), widths, strict=True):
        check_sequences(name, x, width)
    if key.shape[:2] != value.shape[:2]:
        raise ValueError(
            f"value has (batch, time) = {tuple(value.shape[:2])}, expected that of key, "
            f"{tuple(key.shape[:2])}"
        )
    if query.size(0) != key.size(0):
        raise ValueError(
            f"key has batch size {key.size(0)}, expected that of query, {query.size(0)}"
        )
    check_mask("key_padding_mask", key_padding_mask)
    check_padding_mask("query_padding_mask", query_padding_mask, *query.shape[:2])


def check_attention_mask(
    mask: Tensor | None, batch: int, heads: int, queries: int, keys: int
) -> None:
    """Raise `ValueError` unless `mask` is None or of a shape that `Attention.forward` documents."""
    if mask is None:
        return
    check_mask("attn_mask", mask)
    allowed = (
        (queries, keys),
        (batch * heads, queries, keys),
        (batch, 1, queries, keys),
        (batch, heads, queries, keys),
    )
    if tuple(mask.shape) not in allowed:
        raise ValueError(
            f"attn_mask has shape {tuple(mask.shape)}, expected (queries, keys) = "
            f"({queries}, {keys}), (batch * heads, queries, keys) = "
            f"({batch * heads}, {queries}, {keys}) or (batch, 1 or heads, queries, keys) = "
            f"({batch}, 1 or {heads}, {queries}, {keys})"
        )


def merge_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    heads: int,
    queries: int,
    keys: int,
    *,
    offset: int | Tensor = 0,
    device: torch.device | None = None,
) -> Tensor | None:
    """One mask that broadcasts to `(batch, heads, queries, keys)`, or None where all is attended.

    It is boolean, `True` = not attended, or a float mask to add if either mask given was one. Query
    `t` stands at position `offset + t` of the keys (`offset` counts what a decoding cache holds).
    """
    blocked: Tensor | None = None
    added: Tensor | None = None
    sees_all = not isinstance(offset, Tensor) and queries == 1 and offset >= keys - 1
    if is_causal and not sees_all:
        blocked = causal_mask(queries, keys, offset, device)
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask[:, None, None, :]  # (batch, 1, 1, keys)
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.unflatten(0, (-1, heads))  # (batch, heads, queries, keys)
    for mask in (key_padding_mask, attn_mask):
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            blocked = mask if blocked is None else blocked | mask
        else:
            added = mask if added is None else added + mask
    if added is None or blocked is None:
        return blocked if added is None else added
    return added.masked_fill(blocked, float("-inf"))


def causal_mask(
    queries: int, keys: int, offset: int | Tensor = 0, device: torch.device | None = None
) -> Tensor:
    """Boolean `(queries, keys)`, `True` where key `s` lies in the future of query `offset + t`.

    >>> causal_mask(2, 3).int().tolist()
    [[0, 1, 1], [0, 0, 1]]
    """
    if isinstance(offset, Tensor):
        last = offset + torch.arange(queries, device=offset.device)
        return torch.arange(keys, device=offset.device) > last.unsqueeze(1)
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(offset + 1)


def of_queries(padding: Tensor, offset: int | Tensor, queries: int) -> Tensor:
    """The part of a padding mask of all keys that is of the queries, the last of them.

    If the offset is a tensor, the cache is of a fixed size, and the queries stand from there on.
    """
    if isinstance(offset, Tensor):
        return padding.index_select(-1, offset + torch.arange(queries, device=padding.device))
    first = padding.size(-1) - queries  # [-queries:] would be all of it where there are no queries
    return padding[..., first:]


def blocks(mask: Tensor) -> Tensor:
    """Where a mask lets nothing through, as a boolean mask of the same shape.

    In a float mask that is -1000 or less, such as -inf, -1e9 or -1e4: of a logit that is so much
    smaller than others, softmax makes 0 in every dtype. What is greater is a bias of what is seen.
    """
    return mask <= _HIDES if mask.is_floating_point() else mask
