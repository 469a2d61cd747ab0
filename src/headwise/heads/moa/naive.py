"""MoA's numerics as the equations read, for the tests of the fast ones."""

import torch
from torch import Tensor


def naive_expert_project(x: Tensor, weight: Tensor, indices: Tensor) -> Tensor:
    """`expert_project` as the equation reads, from indices `(tokens, top_k)`."""
    y = x.new_zeros(*indices.shape, weight.shape[2])
    for n, experts in enumerate(indices.tolist()):
        for j, e in enumerate(experts):
            y[n, j] = x[n] @ weight[e]
    return y


def naive_expert_combine(heads: Tensor, weight: Tensor, indices: Tensor, scale: Tensor) -> Tensor:
    """`expert_combine` as the equation reads, from indices `(tokens, top_k)`."""
    y = heads.new_zeros(len(indices), weight.shape[2])
    for n, experts in enumerate(indices.tolist()):
        for j, e in enumerate(experts):
            y[n] += scale[n, j] * (heads[n, j] @ weight[e])
    return y


def naive_router_losses(
    logits: Tensor,
    indices: Tensor,
    padding: Tensor | None = None,
    *,
    per_sequence: bool = False,
) -> tuple[Tensor, Tensor]:
    """Equations 13 to 16 as plain loops."""
    batch, time, experts = logits.shape
    sequences = [
        [(b, t) for t in range(time) if padding is None or not padding[b, t]] for b in range(batch)
    ]
    tokens = [token for sequence in sequences for token in sequence]
    if not tokens:
        return logits.new_zeros(()), logits.new_zeros(())
    balances = []
    for group in sequences if per_sequence else [tokens]:
        if group:
            f = [sum(float(i in indices[b, t].tolist()) for b, t in group) for i in range(experts)]
            p = [sum(logits[b, t].softmax(-1)[i] for b, t in group) for i in range(experts)]
            balances.append(experts * sum(f[i] / sum(f) * p[i] / sum(p) for i in range(experts)))
    z = sum(torch.log(torch.exp(logits[b, t]).sum()) ** 2 for b, t in tokens) / len(tokens)
    return torch.as_tensor(sum(balances) / len(balances)), torch.as_tensor(z)
