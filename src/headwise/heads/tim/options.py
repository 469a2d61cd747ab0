"""The options of TIM's layer: presets, the width of the exchange, and what fits together."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headwise.heads.cache import AttentionCache
from headwise.ops.masks import check_padding_mask
from headwise.ops.shapes import check_sequences

_PAPERS_EXCHANGE_HEAD_DIM = 32

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"exchange_head_dim": _PAPERS_EXCHANGE_HEAD_DIM}
}


def exchange_width(given: int | None, heads: int, mechanism_dim: int) -> int:
    """The width of a head of the exchange: as given, or what makes an eighth of a mechanism's."""
    share = mechanism_dim // (8 * max(1, heads))
    width = min(max(4, share), _PAPERS_EXCHANGE_HEAD_DIM) if given is None else given
    if heads < 0 or width < 1:
        raise ValueError(
            f"exchange_heads is {heads} and exchange_head_dim {width}, expected positive numbers, "
            f"or exchange_heads = 0 for no exchange"
        )
    return width


def check_division(num_mechanisms: int, **sizes: int) -> None:
    """Raises `ValueError` unless every size is a multiple of the number of mechanisms."""
    if num_mechanisms < 1:
        raise ValueError(f"num_mechanisms is {num_mechanisms}, expected a positive number")
    for name, size in sizes.items():
        if size < 1 or size % num_mechanisms:
            raise ValueError(
                f"{name} is {size}, expected a positive multiple of num_mechanisms = "
                f"{num_mechanisms}: every mechanism has an equal share; choose sizes that divide"
            )


def check_memory(
    is_read: bool,
    memory: Tensor | None,
    memory_key_padding_mask: Tensor | None,
    cross_cache: AttentionCache | None,
    batch: int,
    kdim: int,
) -> None:
    """Raises `ValueError` unless a layer that reads a memory has one that fits."""
    if not is_read:
        given = {"memory": memory, "memory_key_padding_mask": memory_key_padding_mask}
        for name, value in {**given, "cross_cache": cross_cache}.items():
            if value is not None:
                raise ValueError(
                    f"{name} was given, but the layer attends over no memory; build it with "
                    f"cross_attention=True, or leave {name} out"
                )
        return
    if memory is None:
        raise ValueError(
            f"memory is None, expected the encoder's output, (batch, keys, {kdim}): the layer was "
            f"built with cross_attention=True"
        )
    check_sequences("memory", memory, kdim)
    if memory.size(0) != batch:
        raise ValueError(f"memory has batch size {memory.size(0)}, expected that of x, {batch}")
    check_padding_mask("memory_key_padding_mask", memory_key_padding_mask, *memory.shape[:2])
