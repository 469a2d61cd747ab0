"""Routing by agreement as the equations read.

The tests compare the fast twins in `routing` with these. `torch.compile` traces these in their
place, since it makes the most of plain operations.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.agreement.votes import (
    COST_FLOOR,
    ENTROPY,
    INVERSE_TEMPERATURE,
    VARIANCE_FLOOR,
    Activation,
    Normalize,
    Routed,
    by_capsule,
    check_votes,
    heads_heard,
    rising,
    scheduled,
)


def naive_simple_routing(
    votes: Tensor,
    *,
    num_capsules: int | None = None,
    iterations: int = 3,
    squash: bool = True,
    normalize: Normalize = "capsules",
    shares: tuple[float, ...] | None = None,
) -> Routed:
    """`simple_routing`, equation by equation; torch.compile makes the most of it."""
    v = by_capsule(votes, check_votes(votes, num_capsules, iterations))
    b = torch.zeros_like(v[..., 0])  # (..., heads, capsules)
    for i in range(iterations):
        share = (b if normalize == "heads" else b.log_softmax(-1)).softmax(-2)
        if i == 0 and shares is not None:
            share = v.new_tensor(shares).unsqueeze(-1).expand_as(share)
        output = (share.unsqueeze(-1) * v).sum(-3)  # (..., capsules, dims)
        if squash:
            square = output.square().sum(-1, keepdim=True)
            # The root has no derivative at 0, where its factor makes it irrelevant.
            length = torch.where(square > 0, square, 1.0).sqrt()
            output = square / (1 + square) * output / length
        if i < iterations - 1:
            b = b + (output.unsqueeze(-3) * v).sum(-1)
    share = share.detach()
    heard = heads_heard(share, over=-2)
    return Routed(output.flatten(-2).to(votes.dtype), share.mean(-1), heard)


def naive_em_routing(
    votes: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    *,
    num_capsules: int | None = None,
    iterations: int = 3,
    inverse_temperature: float = INVERSE_TEMPERATURE,
    activation: Activation = "sigmoid",
    shares: tuple[float, ...] | None = None,
) -> Routed:
    """`em_routing`, equation by equation; torch.compile makes the most of it."""
    v = by_capsule(votes, check_votes(votes, num_capsules, iterations))
    beta_a, beta_u = beta_a.to(v.dtype), beta_u.to(v.dtype)
    log_c = torch.full_like(v[..., 0], -math.log(v.size(-2)))  # (..., heads, capsules)
    for i in range(iterations):
        mass = log_c.exp().sum(-2)  # (..., capsules)
        share = log_c.softmax(-2)  # = C / mass, also where all C of a capsule vanish
        if i == 0 and shares is not None:
            share = v.new_tensor(shares).unsqueeze(-1).expand_as(share)
        mu = (share.unsqueeze(-1) * v).sum(-3)  # (..., capsules, dims)
        square = (v - mu.unsqueeze(-3)).square()
        variance = (share.unsqueeze(-1) * square).sum(-3).clamp(min=VARIANCE_FLOOR)
        log_sigma = variance.log() / 2
        cost = (log_sigma + ENTROPY).sum(-1) * mass + beta_u * mass
        temperature = scheduled(inverse_temperature, i)
        if activation == "standardised":
            deviation = cost - cost.mean(-1, keepdim=True)
            cost = deviation / (deviation.square().mean(-1, keepdim=True) + COST_FLOOR).sqrt()
            temperature = rising(i, iterations)
        logit = temperature * (beta_a - cost)
        if i < iterations - 1:
            # Without the terms that are equal for all capsules: they cancel.
            log_density = -square / (2 * variance).unsqueeze(-3) - log_sigma.unsqueeze(-3)
            log_prior = 0.0 if activation == "none" else F.logsigmoid(logit).unsqueeze(-2)
            log_c = (log_prior + log_density.sum(-1)).log_softmax(-1)
    output = mu if activation == "none" else logit.sigmoid().unsqueeze(-1) * mu
    share = share.detach()
    heard = heads_heard(share, over=-2)
    return Routed(output.flatten(-2).to(votes.dtype), share.mean(-1), heard)
