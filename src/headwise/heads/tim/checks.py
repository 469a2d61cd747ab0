"""Checks of the sizes of mechanisms and of the memory of a decoder's layer."""

from torch import Tensor

from headwise.heads.cache import AttentionCache
from headwise.ops.masks import check_padding_mask
from headwise.ops.shapes import check_sequences


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


def check_no_memory(
    memory: Tensor | None,
    memory_key_padding_mask: Tensor | None,
    cross_cache: AttentionCache | None,
) -> None:
    """Raises `ValueError` if a layer without cross-attention is given something to attend over."""
    for name, value in (
        ("memory", memory),
        ("memory_key_padding_mask", memory_key_padding_mask),
        ("cross_cache", cross_cache),
    ):
        if value is not None:
            raise ValueError(
                f"{name} was given, but the layer attends over no memory; build it with "
                f"cross_attention=True, or leave {name} out"
            )


def check_memory(
    memory: Tensor | None, memory_key_padding_mask: Tensor | None, batch: int, kdim: int
) -> None:
    """Raises `ValueError` unless the memory is `(batch, keys, kdim)` and its mask fits it."""
    if memory is None:
        raise ValueError(
            f"memory is None, expected the encoder's output, (batch, keys, {kdim}): the layer was "
            f"built with cross_attention=True"
        )
    check_sequences("memory", memory, kdim)
    if memory.size(0) != batch:
        raise ValueError(f"memory has batch size {memory.size(0)}, expected that of x, {batch}")
    check_padding_mask("memory_key_padding_mask", memory_key_padding_mask, *memory.shape[:2])
