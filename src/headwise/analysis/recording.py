"""What the heads of a model do on given data: entropy and load of each system."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.analysis.results import AttentionRecord
from headwise.heads.system import Routing
from headwise.models.decisions import record
from headwise.models.plan import system_name
from headwise.models.sites import AttentionSite

# The lowest tell whether a system is certain at least somewhere.
PERCENTILES = (10, 50, 90)


def record_attention(
    model: PreTrainedModel, batches: Iterable[dict[str, Tensor]]
) -> list[AttentionRecord]:
    """Run the model on the batches and count what its systems of heads decide.

    Entropy is the mean of -Σ w ln w over all rows of weights w, each scaled to sum 1. There is a
    row for each token, for each sequence, or a single one, as the system decides. The percentiles
    of the entropy are taken over the same rows.

    Load says how the work is shared, and sums to 1. The system's words say how it is measured:

    - `lead`: the share of rows in which a unit has the largest weight; units that have the largest
      weight together share the row;
    - `choice`: the share of all choices that fall on a unit;
    - `weight`: a unit's mean weight.

    Padding counts in nothing.

    Args:
        model: a headwise model; it is put into evaluation.
        batches: keyword arguments of its forward.
    """
    counters: dict[AttentionSite, _Counter] = {}
    model.eval()
    with torch.no_grad():
        for batch in batches:
            inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
            with record(model) as decided:
                model(**inputs)
            for place, made in decided.items():
                counter = counters.setdefault(place, _Counter(place))
                for routing in made:
                    counter.count(routing)
    return [found for counter in counters.values() if (found := counter.record()) is not None]


class _Counter:
    """What one system has decided so far."""

    def __init__(self, place: AttentionSite) -> None:
        self.place = place
        self.uniform = 0.0
        self.entropies: list[Tensor] = []  # (rows,) of each batch
        self.load: Tensor | None = None  # (experts,), summed over rows

    def count(self, routing: Routing) -> None:
        weights = routing.weights.float()  # (batch, queries, experts) or less, see Routing
        weights = weights / weights.sum(-1, keepdim=True)
        real = torch.ones(weights.shape[:-1], dtype=torch.bool, device=weights.device)
        if routing.padding is not None and weights.dim() == 3:
            real = real & ~routing.padding
        shares = _shares(routing, weights, self.place.module.words.measure)[real]
        weights = weights[real]  # (rows, experts)
        self.uniform = math.log(_how_many_count(routing))
        self.entropies.append(-torch.xlogy(weights, weights).sum(-1).cpu())
        load = shares.sum(0, dtype=torch.float64).cpu()
        self.load = load if self.load is None else self.load + load

    def record(self) -> AttentionRecord | None:
        if self.load is None:
            return None
        entropies = torch.cat(self.entropies).double()
        if not entropies.numel():
            return None
        ordered = entropies.sort().values  # torch.quantile takes no more than 16 million
        return AttentionRecord(
            site=self.place.site,
            layer=self.place.layer,
            system=system_name(type(self.place.module)),
            whole_layer=self.place.module.replaces == "layer",
            experts=self.load.numel(),
            entropy=float(entropies.mean()),
            load=(self.load / entropies.numel()).tolist(),
            uniform=self.uniform,
            entropy_percentiles={
                percent: float(ordered[round(percent / 100 * (len(ordered) - 1))])
                for percent in PERCENTILES
            },
        )


def _how_many_count(routing: Routing) -> int:
    """How many units have a weight in each row."""
    counted = routing.weights if routing.indices is None else routing.indices
    return counted.size(-1)


def _shares(routing: Routing, weights: Tensor, measure: str) -> Tensor:
    """How each row's work is shared; the shape of `weights`."""
    if measure == "choice" and routing.indices is not None:
        each = 1 / routing.indices.size(-1)
        return torch.zeros_like(weights).scatter(-1, routing.indices, each)
    if measure != "lead":
        return weights
    largest = (weights == weights.amax(-1, keepdim=True)).float()
    return largest / largest.sum(-1, keepdim=True)
