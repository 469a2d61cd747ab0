"""Routing by agreement as the equations of `Simple` and `EM` read.

The tests compare the fast twins with these. `torch.compile` traces these in their place, since it
makes the most of plain operations.
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
    heads_heard,
    temperature,
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
    """Algorithm 1, equation by equation."""
    v = by_capsule(votes, num_capsules)
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
    return _routed(output, share.detach(), votes.dtype)


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
    """Algorithm 2, equation by equation."""
    v = by_capsule(votes, num_capsules)
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
        if activation == "standardised":
            deviation = cost - cost.mean(-1, keepdim=True)
            cost = deviation / (deviation.square().mean(-1, keepdim=True) + COST_FLOOR).sqrt()
        rate = temperature(i, iterations, inverse_temperature, activation)
        logit = rate * (beta_a - cost)
        if i < iterations - 1:
            # Without the terms that are equal for all capsules: they cancel.
            log_density = -square / (2 * variance).unsqueeze(-3) - log_sigma.unsqueeze(-3)
            log_prior = 0.0 if activation == "none" else F.logsigmoid(logit).unsqueeze(-2)
            log_c = (log_prior + log_density.sum(-1)).log_softmax(-1)
    output = mu if activation == "none" else logit.sigmoid().unsqueeze(-1) * mu
    return _routed(output, share.detach(), votes.dtype)


def _routed(output: Tensor, share: Tensor, dtype: torch.dtype) -> Routed:
    return Routed(output.flatten(-2).to(dtype), share.mean(-1), heads_heard(share, over=-2))
