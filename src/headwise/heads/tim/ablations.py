"""TIM evaluated with another competition than the learned one, or without some mechanisms.

A mechanism that is removed adds nothing: the updates of its channels are zero, so that the layer
passes on what came in. The others compete without it; in the exchange they still read its channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.heads.ablations import drawn_weights, largest, one_of, without


def _as_they_are(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Competing:
    """What takes the place of the competition, and of the mechanisms' updates.

    `competition` changes c, `(batch, time, mechanisms)`, and `updates` what a sub-layer adds to the
    channels, `(batch, time, mechanisms, width)`.
    """

    competition: Callable[[Tensor], Tensor] = _as_they_are
    updates: Callable[[Tensor], Tensor] = _as_they_are


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
