"""Simple routing: a vote and its capsule agree by their scalar product.

The fast form routes a chunk of votes, `(heads, tokens, capsules, dims)`; the weights C appear as

    share = C_{h→n} / Σ_h C_{h→n}   of a head in a capsule        (heads, tokens, capsules)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.heads.agreement.votes import (
    Normalize,
    Routed,
    by_capsule,
    constant,
    exponential,
    first_shares,
    heads_heard,
    mean_over_heads,
    over_dims,
    plain_routed,
    weighted_sum,
)


class SimpleStep(NamedTuple):
    """What an iteration of simple routing has computed, and its backward pass needs."""

    share: Tensor  # (heads, tokens, capsules)
    weight: Tensor  # C, (heads, tokens, capsules)
    mean: Tensor  # (tokens, capsules, dims)
    output: Tensor  # the mean, squashed or not


class Simple(NamedTuple):
    """Simple routing, algorithm 1 of the paper.

        C_{h→n} = softmax_n(B_{h→n}),  B = 0 at first
        Ω_n     = Σ_h C_{h→n} V_{h→n} / Σ_h C_{h→n}               (equation 7)
        Ω_n     = ‖Ω_n‖² / (1 + ‖Ω_n‖²) · Ω_n / ‖Ω_n‖              (equation 8, if `squash`)
        B_{h→n} += Ω_n · V_{h→n}

    Attributes:
        num_capsules: N, which divides the width of a vote.
        iterations: how often to compute Ω.
        squash: whether to squash the capsules, so that their length is below 1.
        normalize: over what C sums to 1: the `"capsules"` of a head, or the `"heads"` of a capsule,
            as in the authors' public code.
        shares: of each head in every capsule of the first iteration, in place of equal ones.
    """

    num_capsules: int
    iterations: int = 3
    squash: bool = True
    normalize: Normalize = "capsules"
    shares: tuple[float, ...] | None = None

    def plain(self, votes: Tensor) -> Routed:
        """The algorithm, equation by equation."""
        v = by_capsule(votes, self.num_capsules)
        b = torch.zeros_like(v[..., 0])  # (..., heads, capsules)
        for i in range(self.iterations):
            share = (b if self.normalize == "heads" else b.log_softmax(-1)).softmax(-2)
            if i == 0 and self.shares is not None:
                share = v.new_tensor(self.shares).unsqueeze(-1).expand_as(share)
            output = (share.unsqueeze(-1) * v).sum(-3)  # (..., capsules, dims)
            if self.squash:
                square = output.square().sum(-1, keepdim=True)
                # The root has no derivative at 0, where its factor makes it irrelevant.
                length = torch.where(square > 0, square, 1.0).sqrt()
                output = square / (1 + square) * output / length
            if i < self.iterations - 1:
                b = b + (output.unsqueeze(-3) * v).sum(-1)
        return plain_routed(output, share, votes.dtype)

    def steps(self, votes: Tensor, *, keep: bool = True) -> list[SimpleStep]:
        """The iterations; unless `keep` the last alone, without C."""
        share = first_shares(votes, self.shares)
        weight = constant(share, 1 / votes.size(2))  # no gradient is made of it
        logits: Tensor | None = None
        steps: list[SimpleStep] = []
        for i in range(self.iterations):
            if i > 0:
                agreement = over_dims(steps[-1].output * votes)
                logits = agreement if logits is None else agreement.add_(logits)
                if self.normalize == "heads":
                    share = weight = logits.softmax(0)
                else:
                    log_weight = logits.log_softmax(-1)
                    share = log_weight.softmax(0)
                    weight = exponential(log_weight) if keep else share
            alike = i == 0 and self.shares is None
            mean = mean_over_heads(votes) if alike else weighted_sum(share, votes)
            output = mean * _squash_factor(mean)[0] if self.squash else mean
            step = SimpleStep(share, weight, mean, output)
            steps = [*steps, step] if keep else [step]
        return steps

    def route(self, votes: Tensor) -> tuple[Tensor, ...]:
        """Capsules, how much each head counts `(heads, tokens)`, how many are heard `(tokens,)`."""
        (last,) = self.steps(votes, keep=False)
        return last.output, last.share.mean(-1), heads_heard(last.share)

    def gradients(self, votes: Tensor, grad: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Gradients of the votes, and of no betas.

        With b̄ the gradient of the logits after an iteration, Ω̄ that of its output and m̄ that of
        its mean:

            Ω̄ = that of the result, or Σ_h b̄ V;   V̄ += b̄ Ω + share · m̄
            b̄ += l̄ − C Σ_n l̄,  where l̄ = share · ((V − mean) · m̄) is the gradient of log C

        Where C is a softmax over heads, b̄ += l̄.
        """
        grad_votes, grad_logits = torch.zeros_like(votes), None
        for i, (share, weight, mean, output) in reversed(list(enumerate(self.steps(votes)))):
            if grad_logits is not None:
                grad = weighted_sum(grad_logits, votes)
                grad_votes.addcmul_(grad_logits.unsqueeze(-1), output)
            grad_mean = _squash_backward(mean, grad) if self.squash else grad
            grad_votes.addcmul_(share.unsqueeze(-1), grad_mean)
            if i > 0:
                grad_log = over_dims(votes * grad_mean).sub_(over_dims(mean * grad_mean))
                grad_log.mul_(share)
                spent = weight * grad_log.sum(-1, keepdim=True)
                if grad_logits is not None:
                    grad_log.add_(grad_logits)
                grad_logits = grad_log if self.normalize == "heads" else grad_log.sub_(spent)
        return grad_votes, ()


def _squash_factor(mean: Tensor) -> tuple[Tensor, Tensor]:
    """n / (1 + n²), and n, the length of a capsule's mean."""
    length = mean.abs() if mean.size(-1) == 1 else mean.norm(dim=-1, keepdim=True)
    return length / (1 + length.square()), length


def _squash_backward(mean: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a mean m that was multiplied by f(n) = n / (1 + n²): f·ḡ + f′ (m·ḡ) m/n."""
    factor, length = _squash_factor(mean)
    slope = (1 - length.square()) / (1 + length.square()).square()
    direction = mean / length.clamp(min=torch.finfo(mean.dtype).tiny)  # 0 where there is none
    along = over_dims(mean * grad).unsqueeze(-1)
    return torch.addcmul(factor * grad, slope * along, direction)
