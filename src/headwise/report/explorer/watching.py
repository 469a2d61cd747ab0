"""One forward pass of a model, seen from inside: what its systems decide, and how heads read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.heads_read import HeadsRead
from headwise.heads.system import Routing
from headwise.models.decisions import record
from headwise.models.evaluating import evaluating
from headwise.models.heads_read import HeadsSite, heads_read
from headwise.models.sites import AttentionSite, attention_sites


@dataclass(frozen=True)
class Reading:
    """How the heads of one attention have read.

    Attributes:
        name: its path in the system; empty if it is the system itself.
        is_cross: whether its keys are of something else than its queries.
        weights: `(heads, queries, keys)` of the first sequence.
    """

    name: str
    is_cross: bool
    weights: Tensor


@dataclass
class Watched:
    """What one system has done in one pass."""

    place: AttentionSite
    routing: Routing | None = None
    by_name: dict[str, Reading] = field(default_factory=dict)

    @property
    def readings(self) -> list[Reading]:
        """How its attentions have read, each in its last call."""
        return list(self.by_name.values())


@torch.no_grad()
def watch(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Any, list[Watched]]:
    """Runs a model once in evaluation mode on a batch of one sequence.

    Args:
        model: a headwise model, or any module that holds systems.
        inputs: arguments of its forward.

    Returns:
        What the model returns, and what each system has done, in the order in which they stand.
    """
    watched = {place.path: Watched(place) for place in attention_sites(model)}

    def note(site: HeadsSite, read: HeadsRead) -> None:
        name = site.path.removeprefix(site.system.path).removeprefix(".")
        is_cross = read.inputs.key is not read.inputs.query
        weights = read.weights(slice(0, 1))[0].float().cpu()
        watched[site.system.path].by_name[name] = Reading(name, is_cross, weights)

    with evaluating(model), record(model) as decided, heads_read(model, note):
        output = model(**inputs)
    for place, made in decided.items():
        watched[place.path].routing = made[-1]
    return output, list(watched.values())
