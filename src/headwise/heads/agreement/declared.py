"""What routing by agreement declares beside its layer: presets, words of reports, ablations.

An ablation is what takes the place of the module's own routing.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.heads.ablations import drawn_weights, largest, one_of
from headwise.heads.agreement.votes import Routed
from headwise.heads.system import Words

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"inverse_temperature": 0.01},
    "authors": {"inputs": "all", "normalize": "heads", "activation": "none"},
}
Route = Callable[..., Routed]


class Rerouting(NamedTuple):
    """Another routing than the module's own.

    Attributes:
        how: keywords for the module's routing in place of its own: `iterations`, and `shares`, each
            head's share in every capsule of the first iteration.
        voting: from the votes `(tokens, heads, embed_dim)` to `(tokens, heads)`, 1 for a head that
            votes and 0 for one whose votes are left out; all vote if None.
        voters: how many heads vote at each position.
    """

    how: Mapping[str, Any] = {}
    voting: Callable[[Route, Tensor], Tensor] | None = None
    voters: int = 0

    def __call__(self, route: Route, votes: Tensor) -> Routed:
        """Routes the votes of all heads, `(tokens, heads, embed_dim)`, by the module's routing."""
        if self.voting is None:
            return route(votes, **self.how)
        voting = self.voting(route, votes)
        order = voting.sort(dim=-1, descending=True, stable=True).indices[:, : self.voters]
        routed = route(votes.gather(1, order.unsqueeze(-1).expand(-1, -1, votes.size(-1))))
        weights = torch.zeros_like(voting, dtype=routed.weights.dtype)
        return routed._replace(weights=weights.scatter(1, order, routed.weights))


def uniform(layer: Any) -> Rerouting:
    """All heads have equal shares in every capsule: the first iteration alone, before agreement."""
    return Rerouting({"iterations": 1})


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Rerouting:
    """The first iteration alone, in which each head has a random share, drawn for each layer."""
    (drawn,) = drawn_weights(layer.num_heads, 1, seed, index, count)
    return Rerouting({"iterations": 1, "shares": tuple(drawn.tolist())})


def fewer_iterations(layer: Any, *, iterations: int) -> Rerouting:
    """The routing stops after fewer iterations than in training."""
    if not 1 <= iterations <= layer.iterations:
        most = f"{layer.iterations}, as many as in training"
        raise ValueError(f"iterations is {iterations}, expected 1 to {most}")
    return Rerouting({"iterations": iterations})


def without_head(layer: Any, *, head: int) -> Rerouting:
    """The votes of one head are left out of the routing, which the others settle by themselves."""
    removed = one_of("head", head, "num_heads", layer.num_heads)
    _check_more_than_one(layer)
    return Rerouting(voting=_of(1 - removed), voters=layer.num_heads - 1)


def without_top_head(layer: Any) -> Rerouting:
    """At each position the votes of the head of largest share are left out of the routing."""
    _check_more_than_one(layer)

    def voting(route: Route, votes: Tensor) -> Tensor:
        return 1 - largest(route(votes).weights)

    return Rerouting(voting=voting, voters=layer.num_heads - 1)


def only_head(layer: Any, *, head: int) -> Rerouting:
    """One head alone votes: every output capsule is made of its vote."""
    kept = one_of("head", head, "num_heads", layer.num_heads)
    return Rerouting(voting=_of(kept), voters=1)


def _of(heads: Tensor) -> Callable[[Route, Tensor], Tensor]:
    return lambda _, votes: heads.to(votes.device).expand(votes.shape[:2])


def _check_more_than_one(layer: Any) -> None:
    if layer.num_heads == 1:
        raise ValueError("num_heads is 1: without its only head there are no votes to route")


ABLATIONS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "random": random,
    "fewer-iterations": fewer_iterations,
    "without-top-head": without_top_head,
    "without-head": without_head,
    "only-head": only_head,
}
WORDS = Words(
    unit="head",
    units="heads",
    decision="agreement",
    measure="weight",
    entropy="says how evenly the heads share in what the routing agrees on for a position: on the "
    "dashed line all have the same share, near 0 a single head is listened to.",
    share="is the mean share of each head.",
    part="capsule",
)
