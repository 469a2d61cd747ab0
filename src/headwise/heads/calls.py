"""Checks of what an attention is called with, whose errors say how to mend it."""

from typing import TYPE_CHECKING

from torch import Tensor

from headwise.ops.masks import check_mask, check_padding_mask
from headwise.ops.shapes import check_sequences

if TYPE_CHECKING:
    from headwise.heads.attention import Attention


def check_call(
    attention: "Attention",
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    query_padding_mask: Tensor | None,
) -> None:
    """Raises `ValueError` unless the sequences fit the attention and each other.

    How many keys there are in all is not known yet, nor whether `key_padding_mask` fits them.
    """
    check_sequences("query", query, attention.embed_dim)
    check_sequences("key", key, attention.kdim)
    check_sequences("value", value, attention.vdim)
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
