"""What the experts of a model do on given data: entropy and load per attention module."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.analysis.results import AttentionRecord
from headwise.heads.system import AttentionOutput
from headwise.models.sites import AttentionSite, attention_sites
from headwise.ops.masks import padding_positions


def record_attention(
    model: PreTrainedModel, batches: Iterable[dict[str, Tensor]]
) -> list[AttentionRecord]:
    """Run the model on the batches and count what its routed attentions decide.

    Entropy is the mean of -Σ g ln g over sequences or tokens. Load is, for gates, the share of
    sequences (of tokens, where gates are causal) whose largest gate an expert holds, as in table
    8 of the MAE paper; for choices, the share of all choices that fall on it, as in figure 3 of
    the MoA paper. Padding counts in neither.

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
    """The sums of one attention module."""

    def __init__(self, site: AttentionSite) -> None:
        self.site = site
        self.kind = ""
        self.uniform = 0.0
        self.rows = 0.0
        self.entropy = 0.0
        self.load: Tensor | None = None  # (experts,)

    def count(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: AttentionOutput
    ) -> None:
        if out.routing is None:
            return
        weights = out.routing.weights.float()  # (batch, [queries,] experts)
        experts = weights.size(-1)
        padding = kwargs.get("query_padding_mask")
        if padding is None and len(args) == 1:
            padding = kwargs.get("key_padding_mask")
        padding = padding_positions(padding)
        real = torch.ones(weights.shape[:-1], device=weights.device)
        if padding is not None and weights.dim() == 3:
            real = real.masked_fill(padding, 0.0)
        entropy = -torch.xlogy(weights, weights).sum(-1)
        self.entropy += float((entropy * real).sum())
        self.rows += float(real.sum())
        chosen = out.routing.indices
        self.kind = "gates" if chosen is None else "choices"
        if chosen is None:
            self.uniform = math.log(experts)
            largest = (weights == weights.amax(-1, keepdim=True)).float()
            share = largest / largest.sum(-1, keepdim=True)  # UNI-MAE's gates are all the largest
        else:
            self.uniform = math.log(chosen.size(-1))
            each = torch.full(chosen.shape, 1 / chosen.size(-1), device=weights.device)
            share = torch.zeros_like(weights).scatter_(-1, chosen, each)
        load = (share * real.unsqueeze(-1)).flatten(0, -2).sum(0)
        self.load = load if self.load is None else self.load + load

    def record(self) -> AttentionRecord | None:
        if self.load is None or not self.rows:
            return None
        return AttentionRecord(
            site=self.site.site,
            layer=self.site.layer,
            kind=self.kind,
            experts=self.load.numel(),
            entropy=self.entropy / self.rows,
            load=(self.load / self.rows).tolist(),
            uniform=self.uniform,
        )
