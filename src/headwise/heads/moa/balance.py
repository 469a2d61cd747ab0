"""The two auxiliary losses of MoA's router.

Zhang et al. 2022, *Mixture of Attention Heads: Selecting Attention Heads Per Token*,
https://arxiv.org/abs/2210.05144, equations 13 to 16.
"""

import torch
from torch import Tensor

from headwise.ops.masks import real_positions
from headwise.ops.replicas import sum_over_replicas


def router_losses(
    logits: Tensor, indices: Tensor, padding: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Balance loss and z-loss of a router, without padding.

        L_a = N Σᵢ fᵢ Pᵢ        f, P: tokens and probability given to expert i, each summing to 1
        L_z = mean over tokens of (log Σᵢ exp xᵢ)²

    Both are statistics of the batch, so in a data-parallel run they are taken over all processes.

    Args:
        logits: `(batch, time, experts)`, the router's logits x.
        indices: `(batch, time, top_k)`, the experts chosen.
        padding: boolean `(batch, time)`, `True` at padding.

    Returns:
        `(balance, z)`, two scalars; zeros where there is no real token.
    """
    experts = logits.size(-1)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    real = real_positions(logits, padding)
    probability = (logits.softmax(-1) * real.unsqueeze(-1)).sum((0, 1))  # (experts,)
    squares = (logits.logsumexp(-1).square() * real).sum()
    chosen = real.unsqueeze(-1).expand(indices.shape)
    load = torch.zeros_like(probability).index_add_(0, indices.flatten(), chosen.flatten())
    sums = torch.cat([probability, load, squares.reshape(1), real.sum().reshape(1)])
    probability, load, squares, tokens = sum_over_replicas(sums).split([experts, experts, 1, 1])
    tokens = tokens.clamp(min=1)
    top_k = indices.size(-1)
    balance = experts * (load / (top_k * tokens) * (probability / tokens)).sum()
    return balance, (squares / tokens).squeeze()
