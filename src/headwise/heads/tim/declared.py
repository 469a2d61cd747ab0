"""What TIM declares beside its layer: presets and sizes, words of reports, ablations.

A mechanism that an ablation removes adds nothing: the updates of its channels are zero, so that the
layer passes on what came in. The others compete without it; in the exchange they still read its
channels.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.heads.ablations import drawn_weights, largest, one_of, without
from headwise.heads.cache import AttentionCache
from headwise.heads.system import Words
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
    layer: Any,
    batch: int,
    memory: Tensor | None,
    memory_key_padding_mask: Tensor | None,
    cross_cache: AttentionCache | None,
) -> None:
    """Raises `ValueError` unless a layer that reads a memory has one that fits."""
    given = {"memory": memory, "memory_key_padding_mask": memory_key_padding_mask}
    if layer.cross_attention is None:
        for name, value in {**given, "cross_cache": cross_cache}.items():
            if value is not None:
                raise ValueError(
                    f"{name} was given, but the layer attends over no memory; build it with "
                    f"cross_attention=True, or leave {name} out"
                )
        return
    if memory is None:
        raise ValueError(
            f"memory is None, expected the encoder's output, (batch, keys, {layer.kdim}): the "
            f"layer was built with cross_attention=True"
        )
    check_sequences("memory", memory, layer.kdim)
    if memory.size(0) != batch:
        raise ValueError(f"memory has batch size {memory.size(0)}, expected that of x, {batch}")
    check_padding_mask("memory_key_padding_mask", memory_key_padding_mask, *memory.shape[:2])


class Competing(NamedTuple):
    """What takes the place of the competition, and of the mechanisms' updates.

    `competition` changes c, `(batch, time, mechanisms)`, and `updates` what a sub-layer adds to the
    channels, `(batch, time, mechanisms, width)`.
    """

    competition: Callable[[Tensor], Tensor]
    updates: Callable[[Tensor], Tensor] = lambda updates: updates


def uniform(layer: Any) -> Competing:
    """All mechanisms count alike at every position: c is 1/n_s."""
    _check(layer)
    return Competing(lambda c: torch.full_like(c, 1 / layer.num_mechanisms))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Competing:
    """c is a random point of the simplex, the same at every position, another in each layer."""
    _check(layer)
    (drawn,) = drawn_weights(layer.num_mechanisms, 1, seed, index, count)
    return Competing(lambda c: drawn.to(c).expand_as(c))


def winner(layer: Any) -> Competing:
    """The mechanism that wins a position has it for itself: c is 1 for it and 0 for the others."""
    _check(layer)
    return Competing(largest)


def without_winner(layer: Any) -> Competing:
    """The mechanism that wins a position has c = 0 there; the others' c is scaled to sum 1."""
    _check(layer)
    _check_more_than_one(layer)
    return Competing(lambda c: without(c, largest(c)))


def without_mechanism(layer: Any, *, mechanism: int) -> Competing:
    """One mechanism adds nothing; the others compete without it, their c scaled to sum 1."""
    removed = one_of("mechanism", mechanism, "num_mechanisms", layer.num_mechanisms)
    _check_more_than_one(layer)
    return Competing(lambda c: without(c, removed), lambda x: _kept(x, 1 - removed))


def only_mechanism(layer: Any, *, mechanism: int) -> Competing:
    """One mechanism alone adds anything, with c = 1 at every position."""
    kept = one_of("mechanism", mechanism, "num_mechanisms", layer.num_mechanisms)
    return Competing(lambda c: without(c, 1 - kept), lambda x: _kept(x, kept))


def _kept(updates: Tensor, kept: Tensor) -> Tensor:
    return updates * kept.to(updates).unsqueeze(-1)


def _check(layer: Any) -> None:
    if layer.competition_weight is None:
        raise ValueError(
            "the layer was built with competition=False: it has no competition to change"
        )


def _check_more_than_one(layer: Any) -> None:
    if layer.num_mechanisms == 1:
        raise ValueError("num_mechanisms is 1: without its only mechanism a layer computes nothing")


ABLATIONS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "random": random,
    "winner": winner,
    "without-winner": without_winner,
    "without-mechanism": without_mechanism,
    "only-mechanism": only_mechanism,
}
WORDS = Words(
    unit="mechanism",
    units="mechanisms",
    decision="competition",
    measure="lead",
    entropy="says how undecided the competition of the mechanisms is: on the dashed line all "
    "count alike, near 0 one of them has the position for itself. The thin line is the lowest "
    "tenth of positions: there a layer is most certain.",
    share="says how many positions each mechanism wins.",
    shows_lowest=True,
)
