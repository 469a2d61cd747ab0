"""The two auxiliary losses of MoA's router.

Zhang et al. 2022, *Mixture of Attention Heads: Selecting Attention Heads Per Token*,
https://arxiv.org/abs/2210.05144, equations 13 to 16.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops.masks import real_positions
from headwise.ops.replicas import sum_over_replicas


class RouterLosses(NamedTuple):
    """Two losses, scalars, and of how many real tokens they are, at least 1."""

    balance: Tensor
    z: Tensor
    tokens: Tensor


def router_losses(
    logits: Tensor,
    indices: Tensor,
    padding: Tensor | None = None,
    *,
    per_sequence: bool = False,
) -> RouterLosses:
    """Balance loss and z-loss of a router, without padding, over all processes of a run.

        L_a = N Σᵢ fᵢ Pᵢ        f, P: tokens and probability given to expert i, each summing to 1
        L_z = mean over tokens of (log Σᵢ exp xᵢ)²

    The paper writes f and P as sums over a sequence. Its authors' code sums over all tokens of a
    batch, and so does this function: an expert may then serve some sequences and not others.
    `per_sequence` takes L_a of each sequence that is not padding alone, and the mean of these.

    Args:
        logits: `(batch, time, experts)`, the router's logits x.
        indices: `(batch, time, top_k)`, the experts chosen.
        padding: boolean `(batch, time)`, `True` at padding.
        per_sequence: balance the experts within each sequence.
    """
    experts, top_k = logits.size(-1), indices.size(-1)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    real = real_positions(logits, padding)
    squares = (logits.logsumexp(-1).square() * real).sum()
    probability = (logits.softmax(-1) * real.unsqueeze(-1)).sum(1)  # (batch, experts)
    load = torch.zeros_like(probability)
    load.scatter_add_(1, indices.flatten(1), real.repeat_interleave(top_k, dim=1))
    tokens = real.sum(1, keepdim=True)  # (batch, 1)
    if per_sequence:
        balance = experts * _balance(load / top_k, probability, tokens)  # (batch,)
        sums = torch.stack([balance.sum(), (tokens > 0).sum().to(balance), squares, tokens.sum()])
        balance, sequences, squares, count = sum_over_replicas(sums)
        count = count.clamp(min=1)
        return RouterLosses(balance / sequences.clamp(min=1), squares / count, count)
    sums = torch.cat([probability.sum(0), load.sum(0), squares.reshape(1), tokens.sum().reshape(1)])
    probability, load, squares, count = sum_over_replicas(sums).split([experts, experts, 1, 1])
    balance = experts * _balance(load / top_k, probability, count)
    count = count.clamp(min=1).squeeze()
    return RouterLosses(balance, squares.squeeze() / count, count)


def _balance(load: Tensor, probability: Tensor, tokens: Tensor) -> Tensor:
    """Σᵢ fᵢ Pᵢ over the experts, the last dimension, of sums over so many tokens."""
    tokens = tokens.clamp(min=1)
    return (load / tokens * (probability / tokens)).sum(-1)
