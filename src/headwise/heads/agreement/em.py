"""EM routing: a vote agrees as far as its capsule's Gaussian expects it.

The fast form routes a chunk of votes, `(heads, tokens, capsules, dims)`; the weights C appear as

    share = C_{h→n} / Σ_h C_{h→n}   of a head in a capsule        (heads, tokens, capsules)
    mass  = Σ_h C_{h→n}             what a capsule got in all     (tokens, capsules)
"""

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.agreement.votes import (
    COST_FLOOR,
    ENTROPY,
    INVERSE_TEMPERATURE,
    VARIANCE_FLOOR,
    Activation,
    Routed,
    by_capsule,
    exponential,
    first_shares,
    heads_heard,
    mean_over_heads,
    over_dims,
    plain_routed,
    weighted_sum,
)


class EMStep(NamedTuple):
    """What an M step has computed, and its backward pass needs."""

    share: Tensor  # (heads, tokens, capsules)
    mass: Tensor  # (tokens, capsules)
    mean: Tensor  # (tokens, capsules, dims)
    offset: Tensor  # votes − mean
    variance: Tensor  # (tokens, capsules, dims), not yet floored
    floored: Tensor
    log_sigma: Tensor  # (tokens, capsules), summed over dims
    logit: Tensor  # (tokens, capsules), of the activation
    temperature: float  # λ
    spread: Tensor | None  # (tokens, 1), of costs that are standardised, and these
    standard: Tensor | None  # (tokens, capsules)


class EM(NamedTuple):
    """Algorithm 2, of votes and of β_A and β_u: scalars, or one each for a capsule.

        M step   μ_n  = Σ_h C_{h→n} V_{h→n} / Σ_h C_{h→n}              (equation 10)
                 σ²_n = Σ_h C_{h→n} (V_{h→n} − μ_n)² / Σ_h C_{h→n}     (equation 11)
                 χ_n  = Σ_i (log σ_n^i + (1 + log 2π)/2) · Σ_h C_{h→n}
                 A_n  = sigmoid(λ (β_A − β_u Σ_h C_{h→n} − χ_n))
        E step   P_{h→n} = Π_i exp(−(V^i_{h→n} − μ^i_n)² / 2σ²) / √(2πσ²)
                 C_{h→n} = A_n P_{h→n} / Σ_n A_n P_{h→n}                (equation 12)
        output   Ω_n = A_n μ_n                                         (equation 9)

    with C = 1/N at first and λ = inverse_temperature · (1 − 0.95^(i+1)) in iteration i = 0, 1, …
    Variances are at least `VARIANCE_FLOOR`. The paper follows Hinton et al. 2018, *Matrix Capsules
    with EM Routing*, and has a “fixed schedule” of λ, without its limit. With theirs, 0.01, A is
    0.500 for all capsules, and routing is by the densities alone; at 100, the default, activations
    vary by tenths and decide. The paper's printed density lacks a square root.

    Attributes:
        num_capsules: N, which divides the width of a vote.
        iterations: how many M steps.
        inverse_temperature: the limit of λ over the iterations.
        activation: what A is: the `"sigmoid"` above; `"standardised"`, the sigmoid of costs
            β_u Σ_h C_{h→n} + χ_n less their mean over capsules, over their deviation, at a λ that
            rises from 1 to 3; or `"none"`, with A = 1 throughout. The last two are in the authors'
            public code, at two commits.
        shares: of each head in every capsule of the first iteration, in place of equal ones.
    """

    num_capsules: int
    iterations: int = 3
    inverse_temperature: float = INVERSE_TEMPERATURE
    activation: Activation = "sigmoid"
    shares: tuple[float, ...] | None = None

    def plain(self, votes: Tensor, beta_a: Tensor, beta_u: Tensor) -> Routed:
        """The algorithm, equation by equation."""
        v = by_capsule(votes, self.num_capsules)
        beta_a, beta_u = beta_a.to(v.dtype), beta_u.to(v.dtype)
        log_c = torch.full_like(v[..., 0], -math.log(v.size(-2)))  # (..., heads, capsules)
        for i in range(self.iterations):
            mass = log_c.exp().sum(-2)  # (..., capsules)
            share = log_c.softmax(-2)  # = C / mass, also where all C of a capsule vanish
            if i == 0 and self.shares is not None:
                share = v.new_tensor(self.shares).unsqueeze(-1).expand_as(share)
            mu = (share.unsqueeze(-1) * v).sum(-3)  # (..., capsules, dims)
            square = (v - mu.unsqueeze(-3)).square()
            variance = (share.unsqueeze(-1) * square).sum(-3).clamp(min=VARIANCE_FLOOR)
            log_sigma = variance.log() / 2
            cost = (log_sigma + ENTROPY).sum(-1) * mass + beta_u * mass
            if self.activation == "standardised":
                deviation = cost - cost.mean(-1, keepdim=True)
                cost = deviation / (deviation.square().mean(-1, keepdim=True) + COST_FLOOR).sqrt()
            logit = self._rate(i) * (beta_a - cost)
            if i < self.iterations - 1:
                # Without the terms that are equal for all capsules: they cancel.
                log_density = -square / (2 * variance).unsqueeze(-3) - log_sigma.unsqueeze(-3)
                log_c = log_density.sum(-1)
                if self.activation != "none":
                    # log sigmoid, which ONNX computes as the log of what may have become 0.
                    log_c = log_c - torch.logaddexp(torch.zeros_like(logit), -logit).unsqueeze(-2)
                log_c = log_c.log_softmax(-1)
        output = mu if self.activation == "none" else logit.sigmoid().unsqueeze(-1) * mu
        return plain_routed(output, share, votes.dtype)

    def _rate(self, iteration: int) -> float:
        """λ of an iteration, counted from 0; where costs are standardised it rises from 1 to 3.

        >>> [EM(1, activation="standardised")._rate(i) for i in range(3)]
        [1.0, 2.0, 3.0]
        """
        if self.activation == "standardised":
            return 1 + 2 * iteration / max(1, self.iterations - 1)
        return self.inverse_temperature * (1 - 0.95 ** (iteration + 1))

    def steps(
        self, votes: Tensor, beta_a: Tensor, beta_u: Tensor, *, keep: bool = True
    ) -> list[EMStep]:
        """The M steps, with an E step between each and the next; the last alone unless `keep`."""
        heads, tokens, capsules, dims = votes.shape
        share = first_shares(votes, self.shares)
        mass = votes.new_full((tokens, capsules), heads / capsules)
        steps: list[EMStep] = []
        for i in range(self.iterations):
            alike = i == 0 and self.shares is None
            total = mean_over_heads if alike else partial(weighted_sum, share)
            mean = total(votes)
            offset = votes - mean
            square = offset * offset
            variance = total(square)
            floored = variance.clamp(min=VARIANCE_FLOOR)
            log_sigma = over_dims(floored.log()).mul_(0.5)
            cost = (log_sigma + (beta_u + dims * ENTROPY)) * mass
            rate = self._rate(i)
            spread = None
            if self.activation == "standardised":
                cost = cost - cost.mean(-1, keepdim=True)
                spread = (cost.square().mean(-1, keepdim=True) + COST_FLOOR).sqrt_()
                cost = cost / spread
            logit = (beta_a - cost).mul_(rate)
            made = (share, mass, mean, offset, variance, floored, log_sigma, logit, rate)
            step = EMStep(*made, spread, None if spread is None else cost)
            steps = [*steps, step] if keep else [step]
            if i < self.iterations - 1:
                prior = -log_sigma
                if self.activation != "none":
                    prior += F.logsigmoid(logit)
                share, mass = _e_step(square, floored, prior)
        return steps

    def route(self, votes: Tensor, beta_a: Tensor, beta_u: Tensor) -> tuple[Tensor, ...]:
        """Capsules, how much each head counts `(heads, tokens)`, how many are heard `(tokens,)`."""
        (last,) = self.steps(votes, beta_a, beta_u, keep=False)
        output = last.mean
        if self.activation != "none":
            output = last.logit.sigmoid().unsqueeze(-1) * output
        return output, last.share.mean(-1), heads_heard(last.share)

    def gradients(
        self, votes: Tensor, grad: Tensor, beta_a: Tensor, beta_u: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Gradients of the votes and of the betas.

        With l̄ the gradient of the logits of an E step, log A − Σ_i log σ − Σ_i (V − μ)²/2σ², and
        z̄ that of the activation's logit, the M step before it has (v = σ², δ = V − μ):

            z̄ = (1 − A) Σ_h l̄            mass¯ = −λ z̄ (β_u + Σ_i (log σ + (1 + log 2π)/2))
            μ̄ = Σ_h l̄ δ / v              v̄ = Σ_h l̄ δ²/2v² − (Σ_h l̄ + λ z̄ mass)/2v
            V̄ += share (μ̄ + 2 δ v̄) − l̄ δ/v

        (a change of μ does not change v, for Σ_h share · δ = 0) and the E step before that

            w = Σ_i δ (δ v̄ + μ̄) − Σ_i v v̄ + mass · mass¯
            l̄ = share · (w − mass · Σ_n share · w)

        Of costs that are standardised over capsules, ĉ = (c − mean)/s, λ z̄ is that of −ĉ, and
        c̄ = (ĉ¯ − mean of ĉ¯ − ĉ · mean of ĉ ĉ¯)/s. Without activations z̄ is 0.
        """
        grad_votes, grad_logits = torch.zeros_like(votes), None
        grad_a, grad_u = torch.zeros_like(beta_a), torch.zeros_like(beta_u)
        dims = votes.size(-1)
        for i, step in reversed(list(enumerate(self.steps(votes, beta_a, beta_u)))):
            mass, offset = step.mass, step.offset
            precision = step.floored.reciprocal()
            if grad_logits is None:
                grad_mean = grad
                grad_logit = torch.zeros_like(mass)
                if self.activation != "none":
                    activation = step.logit.sigmoid()
                    grad_mean = grad * activation.unsqueeze(-1)
                    grad_logit = over_dims(grad_mean * step.mean).mul_(1 - activation)
                grad_log_sigma = torch.zeros_like(mass)
                grad_variance = torch.zeros_like(step.variance)
            else:
                total = grad_logits.sum(0)
                pull = grad_logits.unsqueeze(-1) * offset
                grad_mean = pull.sum(0).mul_(precision)
                grad_variance = (pull * offset).sum(0).mul_(precision).mul_(precision).mul_(0.5)
                grad_votes.addcmul_(pull, precision, value=-1)
                grad_logit = torch.zeros_like(mass)
                if self.activation != "none":
                    grad_logit = (-step.logit).sigmoid_().mul_(total)
                grad_log_sigma = -total
            grad_logit *= step.temperature
            grad_a += _as(beta_a, grad_logit)
            if step.spread is not None and step.standard is not None:
                along = (grad_logit * step.standard).mean(-1, keepdim=True)
                grad_logit = grad_logit - grad_logit.mean(-1, keepdim=True)
                grad_logit.addcmul_(step.standard, along, value=-1).div_(step.spread)
            grad_u -= _as(beta_u, grad_logit * mass)
            grad_mass = -grad_logit * (beta_u + step.log_sigma + dims * ENTROPY)
            grad_log_sigma -= grad_logit * mass
            grad_variance += grad_log_sigma.unsqueeze(-1) * precision.mul_(0.5)
            grad_variance.masked_fill_(step.variance < VARIANCE_FLOOR, 0.0)
            pull = torch.addcmul(grad_mean, offset, grad_variance)
            if i > 0:
                constant = mass * grad_mass - over_dims(step.variance * grad_variance)
                grad_share = over_dims(pull * offset).add_(constant)
                spent = (step.share * grad_share).sum(-1, keepdim=True)
                grad_logits = grad_share.addcmul_(mass, spent, value=-1).mul_(step.share)
            pull.addcmul_(offset, grad_variance)
            grad_votes.addcmul_(step.share.unsqueeze(-1), pull)
        return grad_votes, (grad_a, grad_u)


def _as(beta: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a beta, from that of what it is added to, `(tokens, capsules)`."""
    return grad.sum() if beta.numel() == 1 else grad.sum(0)


def _e_step(square: Tensor, variance: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """Shares and mass, from squared offsets, which are overwritten, and log A − Σ_i log σ."""
    logits = over_dims(square.mul_(variance.reciprocal().mul_(-0.5))).add_(log_prior)
    # Densities differ so much that all C of a capsule may vanish; its shares do not.
    log_weight = logits.log_softmax(-1)
    share = log_weight.softmax(0)
    # The sum of a capsule's C, from the largest of them.
    return share, exponential(log_weight.amax(0)).div_(share.amax(0))
