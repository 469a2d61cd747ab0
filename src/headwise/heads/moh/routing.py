"""Numerics of MoH: the gates of the heads that a token selects, and the loss that balances them."""

import torch
from torch import Tensor

from headwise.ops.masks import real_positions
from headwise.ops.replicas import sum_over_replicas


def select_heads(probability: Tensor, top_k: int, *, scaled: bool) -> tuple[Tensor, Tensor]:
    """The gates of the routed heads, zero where not selected, and the numbers of the K selected.

    Scaled, the selected probabilities are divided by their sum and multiplied by K.

    >>> gates, chosen = select_heads(torch.tensor([0.5, 0.2, 0.3]), 2, scaled=True)
    >>> gates, chosen
    (tensor([1.2500, 0.0000, 0.7500]), tensor([0, 2]))
    """
    selected, chosen = probability.topk(top_k, dim=-1)
    if scaled:
        selected = top_k * selected / selected.sum(-1, keepdim=True)
    return torch.zeros_like(probability).scatter(-1, chosen, selected), chosen


def query_norm_logits(q: Tensor) -> Tensor:
    """The logits of a router without parameters: how long the queries of the heads are.

        lᵢ = ‖qᵢ‖ / s    s: standard deviation of the norms of one position

    From queries `(batch, heads, queries, head_dim)` to `(batch, queries, heads)`, in float32 at
    least. Norms that are all equal, or that of a single head, are not divided.

    >>> query_norm_logits(torch.tensor([[[[3.0, 4.0]], [[0.0, 3.0]]]]))
    tensor([[[3.5355, 2.1213]]])
    """
    q = q.to(torch.promote_types(q.dtype, torch.float32))
    norms = torch.linalg.vector_norm(q, dim=-1).transpose(1, 2)
    if norms.size(-1) == 1:
        return norms
    centred = norms - norms.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (norms.size(-1) - 1)
    return norms / variance.where(variance > 0, 1.0).sqrt()


def quantized_gates(probability: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Gates of 1 for the K selected heads, and their numbers.

    The gradient of the gates is passed on to the probabilities as it is, those of heads that are
    not selected included (a straight-through estimator).

    >>> probability = torch.tensor([0.5, 0.2, 0.3], requires_grad=True)
    >>> gates, chosen = quantized_gates(probability, 2)
    >>> gates.detach(), chosen
    (tensor([1., 0., 1.]), tensor([0, 2]))
    """
    chosen = probability.topk(top_k, dim=-1).indices
    selected = torch.zeros_like(probability).scatter(-1, chosen, 1.0)
    return selected + (probability - probability.detach()), chosen


def balance_loss(probability: Tensor, chosen: Tensor, padding: Tensor | None = None) -> Tensor:
    """The loss that keeps the routed heads equally in use, without padding, over all processes.

        L = Σᵢ Pᵢ fᵢ    P: mean probability of head i, f: share of the tokens that select it

    Args:
        probability: `(batch, time, routed)`.
        chosen: `(batch, time, K)`, the heads selected.
        padding: boolean `(batch, time)`, `True` at padding.
    """
    routed = probability.size(-1)
    real = real_positions(probability, padding).unsqueeze(-1)  # (batch, time, 1)
    selected = torch.zeros_like(probability).scatter(-1, chosen, 1.0)
    sums = [(probability * real).sum((0, 1)), (selected * real).sum((0, 1)), real.sum().view(1)]
    mass, load, count = sum_over_replicas(torch.cat(sums)).split([routed, routed, 1])
    count = count.clamp(min=1)
    return (mass / count * (load / count)).sum()
