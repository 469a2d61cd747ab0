"""Decisions that are constructed, as if a model had made them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.analysis.decisions.observing import Observed, observe
from headwise.heads.system import Routing, System, Words
from headwise.models.sites import AttentionSite
from headwise.tasks.positions import Positions


class Places:
    """Places of a model without a model: `places = Places("encoder_self", 3)`."""

    def __init__(self, site: str, number: int) -> None:
        self.places = [
            AttentionSite(site, layer, System(), f"{site}.{layer}") for layer in range(number)
        ]

    def observed(
        self,
        weights: list[Tensor],
        described: Positions | None = None,
        padding: Tensor | None = None,
    ) -> list[Observed]:
        """What `observe` makes of a batch in which layer i decided `weights[i]`."""
        decided = {place: [Routing(each)] for place, each in zip(self.places, weights, strict=True)}
        stack = self.places[0].site.partition("_")[0]
        positions = {} if described is None else {stack: described}
        return observe(decided, positions, {} if padding is None else {stack: padding})


def of_two(first: Tensor) -> Tensor:
    """The weights of two units, given those of the first: `(...)` to `(..., 2)`."""
    return torch.stack([first, 1 - first], -1)


def standing(
    tokens: Tensor,
    classes: Mapping[str, Tensor] | None = None,
    levels: Mapping[str, Tensor] | None = None,
) -> Positions:
    """Tokens with names such as t3, and labels whose classes have names such as c0."""
    named = {
        label: (numbers, [f"c{each}" for each in range(int(numbers.max()) + 1)])
        for label, numbers in (classes or {}).items()
    }
    return Positions(
        shape=(tokens.size(0), tokens.size(1)),
        tokens=tokens,
        names={number: f"t{number}" for number in range(int(tokens.max()) + 1)},
        classes=named,
        levels=dict(levels or {}),
    )


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
