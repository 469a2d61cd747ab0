"""What the heads of a model do on given data: entropy and load per module."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.analysis.results import AttentionRecord
from headwise.heads.system import AttentionOutput, Routing
from headwise.models.sites import AttentionSite, attention_sites
from headwise.ops.masks import padding_positions

# The lowest tell whether a module is certain at least somewhere, as figure 3 of the TIM paper asks.
PERCENTILES = (10, 50, 90)


def record_attention(
    model: PreTrainedModel, batches: Iterable[dict[str, Tensor]]
) -> list[AttentionRecord]:
    """Run the model on the batches and count what its systems of heads decide.

    Entropy is the mean of -Σ w ln w over all rows of weights w, each scaled to sum 1: a row for
    each token; of gates that are not causal, for each sequence; of branches, a single one. Its
    percentiles are taken over the same rows.

    Load says how the work is shared, and sums to 1:

    - gates: the share of rows whose largest gate an expert holds, as in table 8 of the MAE paper;
    - choices: the share of all choices that fall on an expert, as in figure 3 of the MoA paper;
    - competition: the share of positions that a mechanism wins;
    - agreement: a head's mean share of what the routing agreed on;
    - branches: α, the weight of a branch.

    Those that hold the largest weight together share the row. Padding counts in nothing.

    Args:
        model: a headwise model; it is put into evaluation.
        batches: keyword arguments of its forward.
    """
    counters = [_Counter(site) for site in attention_sites(model)]
    hooks = [
        counter.site.module.register_forward_hook(counter.count, with_kwargs=True)
        for counter in counters
    ]
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
    finally:
        for hook in hooks:
            hook.remove()
    return [record for counter in counters if (record := counter.record()) is not None]


class _Counter:
    """What one module has decided so far."""

    def __init__(self, site: AttentionSite) -> None:
        self.site = site
        self.kind = ""
        self.uniform = 0.0
        self.entropies: list[Tensor] = []  # (rows,) of each batch
        self.load: Tensor | None = None  # (experts,), summed over rows

    def count(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: AttentionOutput
    ) -> None:
        if out.routing is None:
            return
        weights = out.routing.weights.float()  # (batch, queries, experts) or less, see Routing
        weights = weights / weights.sum(-1, keepdim=True)
        real = torch.ones(weights.shape[:-1], dtype=torch.bool, device=weights.device)
        padding = _query_padding(args, kwargs)
        if padding is not None and weights.dim() == 3:
            real = real & ~padding
        shares = _shares(out.routing, weights)[real]  # (rows, experts)
        weights = weights[real]
        self.kind = out.routing.kind
        self.uniform = math.log(_how_many_count(out.routing))
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
            site=self.site.site,
            layer=self.site.layer,
            kind=self.kind,
            experts=self.load.numel(),
            entropy=float(entropies.mean()),
            load=(self.load / entropies.numel()).tolist(),
            uniform=self.uniform,
            entropy_percentiles={
                percent: float(ordered[round(percent / 100 * (len(ordered) - 1))])
                for percent in PERCENTILES
            },
        )


def _query_padding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Boolean `(batch, queries)`, `True` at padding, from what a module was called with."""
    padding = kwargs.get("query_padding_mask")
    if padding is None and len(args) == 1:  # self-attention
        padding = kwargs.get("key_padding_mask")
    return padding_positions(padding)


def _how_many_count(routing: Routing) -> int:
    """How many experts have a weight in each row."""
    if routing.kind == "choices":
        assert routing.indices is not None
        return routing.indices.size(-1)
    return routing.weights.size(-1)


def _shares(routing: Routing, weights: Tensor) -> Tensor:
    """How each row's work is shared; the shape of `weights`."""
    if routing.kind == "choices":
        assert routing.indices is not None
        return torch.zeros_like(weights).scatter(-1, routing.indices, 1 / _how_many_count(routing))
    if routing.kind in ("agreement", "branches"):
        return weights
    largest = (weights == weights.amax(-1, keepdim=True)).float()
    return largest / largest.sum(-1, keepdim=True)  # UNI-MAE's gates are all the largest
