"""Decisions that are made up, so that what an analysis has to find is known."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headwise.analysis.behaviour.observing import Observed, observe
from headwise.heads.system import Routing, System
from headwise.heads.words import Words
from headwise.models.sites import AttentionSite
from headwise.tasks.positions import Positions

NAMES = {0: "the", 1: "cat", 2: "sat", 3: "on", 4: "mat"}


class Leading(System):
    """Units that lead."""

    words = Words(measure="lead")


class Choosing(System):
    """Units that are chosen."""

    words = Words(measure="choice")


class Weighing(System):
    """Units that weigh."""

    words = Words(measure="weight")


def place(
    kind: type[System] = Leading, layer: int = 0, site: str = "encoder_self"
) -> AttentionSite:
    stack, _, attention = site.partition("_")
    return AttentionSite(site, layer, kind(), f"{stack}.layers.{layer}.{attention}_attention")


def positions(
    tokens: Sequence[Sequence[int]] | Tensor, classes: Mapping[str, Tensor] | None = None
) -> Positions:
    """Tokens, all sequences of equal length, and labels whose classes are called a, b, c."""
    tokens = torch.as_tensor(tokens).long()
    return Positions(
        shape=(tokens.size(0), tokens.size(1)),
        tokens=tokens,
        names=NAMES,
        classes=classes or {},
        class_names={name: ["a", "b", "c"] for name in classes or {}},
    )


def batch(
    decided: Mapping[AttentionSite, Routing],
    described: Positions | None = None,
    padding: Tensor | None = None,
) -> list[Observed]:
    """What was decided in a batch in which all stacks read the same."""
    stacks = ("encoder", "decoder")
    return observe(
        {place: [routing] for place, routing in decided.items()},
        {} if described is None else dict.fromkeys(stacks, described),
        {} if padding is None else dict.fromkeys(stacks, padding),
    )


def random_weights(*shape: int, seed: int = 0) -> Tensor:
    """Weights of units, the last dimension, which sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator)).softmax(-1)


def random_padding(batch: int, time: int, seed: int = 0) -> Tensor:
    """Padding behind sequences of random lengths of at least 1."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, time + 1, (batch, 1), generator=generator)
    return torch.arange(time) >= lengths
