"""Decisions that are constructed, as if a model had made them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.analysis.behaviour.observing import Observed, observe
from headwise.heads.system import Routing, System
from headwise.models.sites import AttentionSite
from headwise.tasks.positions import Positions


class Layers:
    """Places of a model without a model: `decided = Layers("encoder_self", 3)`."""

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
    labels = dict(classes or {})
    return Positions(
        shape=(tokens.size(0), tokens.size(1)),
        tokens=tokens,
        names={number: f"t{number}" for number in range(int(tokens.max()) + 1)},
        classes=labels,
        class_names={
            name: [f"c{each}" for each in range(int(of.max()) + 1)] for name, of in labels.items()
        },
        levels=dict(levels or {}),
    )
