"""Routing by agreement: how much of what each head says goes to which part of the output.

Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*,
https://arxiv.org/abs/1904.03100.

Every head h has a vote V_{h→n} for each of N output capsules. An output capsule is the mean of its
votes by weights C_{h→n}, of which each head has 1 to give away (Σ_n C_{h→n} = 1), and the weights
follow the agreement of votes and capsules, for some iterations:

    simple   Ω_n = squash(Σ_h C_{h→n} V_{h→n} / Σ_h C_{h→n}),  C = softmax_n(Σ of Ω_n · V_{h→n})
    EM       capsules are Gaussians with mean μ_n, variance σ²_n and activation A_n, fitted to the
             votes; C_{h→n} ∝ A_n · density of V_{h→n};  Ω_n = A_n μ_n

`naive_simple_routing` and `naive_em_routing` read like that. The fast twins keep nothing but the
votes for the backward pass and compute the iterations once more there, chunk by chunk of tokens:
tokens have nothing to do with each other, and the tensors of a chunk stay in the processor's cache.
Chunks of large calls are compiled, see `headwise.heads.agreement.compiling`.

In the chunks, votes are `(heads, tokens, capsules, dims)`; the weights C appear as

    share = C_{h→n} / Σ_h C_{h→n}   of a head in a capsule        (heads, tokens, capsules)
    mass  = Σ_h C_{h→n}             what a capsule got in all     (tokens, capsules)
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.heads.agreement.compiling import Compiled, is_worth_compiling
from headwise.heads.agreement.naive import naive_em_routing, naive_simple_routing
from headwise.heads.agreement.votes import (
    ENTROPY,
    INVERSE_TEMPERATURE,
    VARIANCE_FLOOR,
    Routed,
    by_capsule,
    check_inverse_temperature,
    check_votes,
    scheduled,
    widened,
)
from headwise.ops.precision import without_autocast

# Elements of the votes of a chunk: 4 MiB in float32. A GPU wants larger ones.
_CHUNK = 2**20
_GPU_CHUNK = 2**22
# A chunk's tensors are not to take more memory than the votes of all tokens do.
_CHUNKS = 16
_SMALL_CHUNK = 2**17


def simple_routing(
    votes: Tensor, *, num_capsules: int | None = None, iterations: int = 3, squash: bool = True
) -> Routed:
    """Algorithm 1: agreement is the scalar product of a vote and its capsule.

        C_{h→n} = softmax_n(B_{h→n}),  B = 0 at first
        Ω_n     = Σ_h C_{h→n} V_{h→n} / Σ_h C_{h→n}               (equation 7)
        Ω_n     = ‖Ω_n‖² / (1 + ‖Ω_n‖²) · Ω_n / ‖Ω_n‖              (equation 8, if `squash`)
        B_{h→n} += Ω_n · V_{h→n}

    Args:
        votes: `(..., heads, embed_dim)`; capsule n has columns n·embed_dim/N and following.
        num_capsules: N, which divides `embed_dim`; `embed_dim` if not given.
        iterations: how often to compute Ω; at least 1.
        squash: whether to squash the capsules, so that their length is below 1.

    Raises:
        ValueError: `num_capsules` does not divide `embed_dim`; no iterations.

    Example:
        >>> routed = simple_routing(torch.randn(2, 5, 4, 12), num_capsules=6)
        >>> routed.output.shape, routed.weights.shape
        (torch.Size([2, 5, 12]), torch.Size([2, 5, 4]))
    """
    num_capsules = check_votes(votes, num_capsules, iterations)
    if torch.compiler.is_compiling():
        return naive_simple_routing(
            votes, num_capsules=num_capsules, iterations=iterations, squash=squash
        )
    return Routed(*_Routing.apply(votes, num_capsules, _Simple(iterations, squash)))


def em_routing(
    votes: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    *,
    num_capsules: int | None = None,
    iterations: int = 3,
    inverse_temperature: float = INVERSE_TEMPERATURE,
) -> Routed:
    """Algorithm 2: agreement is how probable a vote is under the Gaussian of its capsule.

        M step   μ_n  = Σ_h C_{h→n} V_{h→n} / Σ_h C_{h→n}              (equation 10)
                 σ²_n = Σ_h C_{h→n} (V_{h→n} − μ_n)² / Σ_h C_{h→n}     (equation 11)
                 χ_n  = Σ_i (log σ_n^i + (1 + log 2π)/2) · Σ_h C_{h→n}
                 A_n  = sigmoid(λ (β_A − β_u Σ_h C_{h→n} − χ_n))
        E step   P_{h→n} = Π_i exp(−(V^i_{h→n} − μ^i_n)² / 2σ²) / √(2πσ²)
                 C_{h→n} = A_n P_{h→n} / Σ_n A_n P_{h→n}                (equation 12)
        output   Ω_n = A_n μ_n                                         (equation 9)

    with C = 1/N at first and λ = inverse_temperature · (1 − 0.95^(i+1)) in iteration i = 0, 1, …
    Variances are at least `VARIANCE_FLOOR`. The paper follows Hinton et al. 2018, *Matrix Capsules
    with EM Routing*, also in the “fixed schedule” of λ, whose limit of 0.01 is the default. Its
    printed density lacks a square root and sums over the dimensions i, where theirs multiplies; in
    capsules of one dimension, the paper's choice, that is the same.

    With a limit of 0.01 the activations decide nothing here. Each capsule has but H/N of the heads'
    weights (8/128 for 8 heads and a width of 128), so that A = 0.500 for all: routing is by the
    densities alone, and halves its output. At a limit of 10 activations vary by hundredths, at 100
    by tenths.

    Args:
        votes: `(..., heads, embed_dim)`; capsule n has columns n·embed_dim/N and following.
        beta_a, beta_u: scalars.
        num_capsules: N, which divides `embed_dim`; `embed_dim` if not given.
        iterations: how many M steps; at least 1.
        inverse_temperature: the limit of λ over the iterations; positive.

    Raises:
        ValueError: `num_capsules` does not divide `embed_dim`; no iterations; an inverse
            temperature that is not positive.

    Example:
        >>> beta = torch.zeros(())
        >>> em_routing(torch.randn(2, 5, 4, 12), beta, beta).output.shape
        torch.Size([2, 5, 12])
    """
    num_capsules = check_votes(votes, num_capsules, iterations)
    check_inverse_temperature(inverse_temperature)
    if torch.compiler.is_compiling():
        return naive_em_routing(
            votes,
            beta_a,
            beta_u,
            num_capsules=num_capsules,
            iterations=iterations,
            inverse_temperature=inverse_temperature,
        )
    algorithm = _EM(iterations, inverse_temperature)
    return Routed(*_Routing.apply(votes, num_capsules, algorithm, beta_a, beta_u))


class _SimpleStep(NamedTuple):
    """An iteration of simple routing, for its backward pass."""

    share: Tensor  # (heads, tokens, capsules)
    weight: Tensor  # C, (heads, tokens, capsules)
    mean: Tensor  # (tokens, capsules, dims)
    output: Tensor  # the mean, squashed or not


class _Simple(NamedTuple):
    """Algorithm 1 on a chunk of votes, `(heads, tokens, capsules, dims)`."""

    iterations: int
    squash: bool

    def steps(self, votes: Tensor) -> list[_SimpleStep]:
        """The iterations."""
        share = _constant(votes[..., 0], 1 / votes.size(0))
        weight = _constant(share, 1 / votes.size(2))
        logits: Tensor | None = None
        steps: list[_SimpleStep] = []
        for _ in range(self.iterations):
            if steps:
                agreement = _over_dims(steps[-1].output * votes)
                logits = agreement if logits is None else agreement.add_(logits)
                log_weight = logits.log_softmax(-1)
                share, weight = log_weight.softmax(0), log_weight.exp()
            mean = _weighted_sum(share, votes)
            output = mean * _squash_factor(mean)[0] if self.squash else mean
            steps.append(_SimpleStep(share, weight, mean, output))
        return steps

    def route(self, votes: Tensor) -> tuple[Tensor, Tensor]:
        """The capsules, and how much each head counts, `(heads, tokens)`."""
        last = self.steps(votes)[-1]
        return last.output, last.share.mean(-1)

    def gradients(self, votes: Tensor, grad: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Gradients of the votes, and of no betas.

        With b̄ the gradient of the logits after an iteration, Ω̄ that of its output and m̄ that of
        its mean:

            Ω̄ = that of the result, or Σ_h b̄ V;   V̄ += b̄ Ω + share · m̄
            b̄ += l̄ − C Σ_n l̄,  where l̄ = share · ((V − mean) · m̄) is the gradient of log C
        """
        grad_votes, grad_logits = torch.zeros_like(votes), None
        for i, (share, weight, mean, output) in reversed(list(enumerate(self.steps(votes)))):
            if grad_logits is not None:
                grad = _weighted_sum(grad_logits, votes)
                grad_votes.addcmul_(grad_logits.unsqueeze(-1), output)
            grad_mean = _squash_backward(mean, grad) if self.squash else grad
            grad_votes.addcmul_(share.unsqueeze(-1), grad_mean)
            if i > 0:
                grad_log = _over_dims(votes * grad_mean).sub_(_over_dims(mean * grad_mean))
                grad_log.mul_(share)
                total = grad_log.sum(-1, keepdim=True)
                if grad_logits is not None:
                    grad_log.add_(grad_logits)
                grad_logits = grad_log.addcmul_(weight, total, value=-1)
        return grad_votes, ()


class _EMStep(NamedTuple):
    """An M step, for its backward pass."""

    share: Tensor  # (heads, tokens, capsules)
    mass: Tensor  # (tokens, capsules)
    mean: Tensor  # (tokens, capsules, dims)
    offset: Tensor  # votes − mean
    variance: Tensor  # (tokens, capsules, dims), not yet floored
    floored: Tensor
    log_sigma: Tensor  # (tokens, capsules), summed over dims
    logit: Tensor  # (tokens, capsules), of the activation
    temperature: float  # λ


class _EM(NamedTuple):
    """Algorithm 2 on a chunk of votes, `(heads, tokens, capsules, dims)`."""

    iterations: int
    inverse_temperature: float

    def steps(self, votes: Tensor, beta_a: Tensor, beta_u: Tensor) -> list[_EMStep]:
        """The M steps, with an E step between each and the next."""
        heads, tokens, capsules, dims = votes.shape
        share = _constant(votes[..., 0], 1 / heads)
        mass = votes.new_full((tokens, capsules), heads / capsules)
        steps: list[_EMStep] = []
        for i in range(self.iterations):
            mean = _weighted_sum(share, votes)
            offset = votes - mean
            square = offset * offset
            variance = _weighted_sum(share, square)
            floored = variance.clamp(min=VARIANCE_FLOOR)
            log_sigma = _over_dims(floored.log()).mul_(0.5)
            chi = (log_sigma + dims * ENTROPY) * mass
            temperature = scheduled(self.inverse_temperature, i)
            logit = (beta_a - beta_u * mass - chi).mul_(temperature)
            steps.append(
                _EMStep(
                    share=share,
                    mass=mass,
                    mean=mean,
                    offset=offset,
                    variance=variance,
                    floored=floored,
                    log_sigma=log_sigma,
                    logit=logit,
                    temperature=temperature,
                )
            )
            if i < self.iterations - 1:
                share, mass = _e_step(square, floored, F.logsigmoid(logit) - log_sigma)
        return steps

    def route(self, votes: Tensor, beta_a: Tensor, beta_u: Tensor) -> tuple[Tensor, Tensor]:
        """The capsules, and how much each head counts, `(heads, tokens)`."""
        last = self.steps(votes, beta_a, beta_u)[-1]
        return last.logit.sigmoid().unsqueeze(-1) * last.mean, last.share.mean(-1)

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
        """
        grad_votes, grad_logits = torch.zeros_like(votes), None
        grad_a, grad_u = torch.zeros_like(beta_a), torch.zeros_like(beta_u)
        dims = votes.size(-1)
        for i, step in reversed(list(enumerate(self.steps(votes, beta_a, beta_u)))):
            mass, offset = step.mass, step.offset
            precision = step.floored.reciprocal()
            if grad_logits is None:
                activation = step.logit.sigmoid()
                grad_mean = grad * activation.unsqueeze(-1)
                grad_logit = _over_dims(grad_mean * step.mean).mul_(1 - activation)
                grad_log_sigma = torch.zeros_like(mass)
                grad_variance = torch.zeros_like(step.variance)
            else:
                total = grad_logits.sum(0)
                pull = grad_logits.unsqueeze(-1) * offset
                grad_mean = pull.sum(0).mul_(precision)
                grad_variance = (pull * offset).sum(0).mul_(precision).mul_(precision).mul_(0.5)
                grad_votes.addcmul_(pull, precision, value=-1)
                grad_logit = (-step.logit).sigmoid_().mul_(total)
                grad_log_sigma = -total
            grad_logit *= step.temperature
            grad_a += grad_logit.sum()
            grad_u -= (grad_logit * mass).sum()
            grad_mass = -grad_logit * (beta_u + step.log_sigma + dims * ENTROPY)
            grad_log_sigma -= grad_logit * mass
            grad_variance += grad_log_sigma.unsqueeze(-1) * precision.mul_(0.5)
            grad_variance.masked_fill_(step.variance < VARIANCE_FLOOR, 0.0)
            pull = torch.addcmul(grad_mean, offset, grad_variance)
            if i > 0:
                constant = mass * grad_mass - _over_dims(step.variance * grad_variance)
                grad_share = _over_dims(pull * offset).add_(constant)
                spent = (step.share * grad_share).sum(-1, keepdim=True)
                grad_logits = grad_share.addcmul_(mass, spent, value=-1).mul_(step.share)
            pull.addcmul_(offset, grad_variance)
            grad_votes.addcmul_(step.share.unsqueeze(-1), pull)
        return grad_votes, (grad_a, grad_u)


def _e_step(square: Tensor, variance: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """Shares and mass, from squared offsets and log A − Σ_i log σ."""
    logits = _over_dims(square * variance.reciprocal().mul_(-0.5)).add_(log_prior)
    if square.size(-1) > 1:
        # Densities of many dimensions differ so much that all C of a capsule may vanish.
        log_weight = logits.log_softmax(-1)
        return log_weight.softmax(0), log_weight.exp_().sum(0)
    weight = logits.softmax(-1)
    mass = weight.sum(0)
    return weight.div_(mass.clamp(min=torch.finfo(mass.dtype).tiny)), mass


class _Routing(torch.autograd.Function):
    """An algorithm, chunk by chunk; of the forward pass only the votes are kept."""

    @staticmethod
    def forward(
        ctx: Any, votes: Tensor, num_capsules: int, algorithm: Any, *betas: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(votes, *betas)
        ctx.num_capsules, ctx.algorithm = num_capsules, algorithm
        tokens = votes.detach().reshape(-1, *votes.shape[-2:])  # (tokens, heads, embed_dim)
        output = tokens.new_empty(tokens.size(0), tokens.size(2))
        weights = tokens.new_empty(tokens.shape[:2], dtype=widened(votes.dtype))
        wide = [beta.detach().to(weights.dtype) for beta in betas]
        with without_autocast(votes):
            for rows, route, _ in _chunks(tokens, algorithm):
                capsules, counts = route(_chunk(tokens[rows], num_capsules), *wide)
                output[rows] = capsules.flatten(1)
                weights[rows] = counts.t()
        leading = votes.shape[:-2]
        output = output.view(*leading, votes.size(-1))
        weights = weights.view(*leading, votes.size(-2))
        ctx.mark_non_differentiable(weights)
        return output, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        votes, *betas = ctx.saved_tensors
        tokens = votes.detach().reshape(-1, *votes.shape[-2:])
        grad_tokens = torch.empty_like(tokens)  # with the strides of the votes
        grad_output = grads[0].reshape(tokens.size(0), tokens.size(2))
        wide = [beta.detach().to(widened(votes.dtype)) for beta in betas]
        grad_betas = [torch.zeros_like(beta) for beta in wide]
        with without_autocast(votes):
            for rows, _, gradients in _chunks(tokens, ctx.algorithm):
                grad = by_capsule(grad_output[rows].contiguous(), ctx.num_capsules)
                chunk = _chunk(tokens[rows], ctx.num_capsules)
                grad_chunk, parts = gradients(chunk, grad, *wide)
                grad_tokens[rows] = grad_chunk.flatten(2).transpose(0, 1)
                for total, part in zip(grad_betas, parts, strict=True):
                    total += part
        of_betas = [total.to(beta.dtype) for total, beta in zip(grad_betas, betas, strict=True)]
        return grad_tokens.view(votes.shape), None, None, *of_betas


def _chunks(tokens: Tensor, algorithm: Any) -> Iterator[tuple[slice, Any, Any]]:
    """Slices of tokens `(tokens, heads, embed_dim)`, with what routes them, and their gradients."""
    count, elements = tokens.size(0), tokens.numel()
    largest = _GPU_CHUNK if tokens.is_cuda else _CHUNK
    per_token = max(1, tokens.size(1) * tokens.size(2))
    whole = max(1, largest // per_token)
    # Compiled chunks are all of one size, whatever the number of tokens; the rest, and calls that
    # fill no chunk, are not compiled.
    compiles = is_worth_compiling(tokens) and count >= whole
    small = min(max(elements // _CHUNKS, _SMALL_CHUNK), largest) // per_token
    size = whole if compiles else max(1, small)
    plain, fast = (algorithm.route, algorithm.gradients), _compiled_methods(algorithm)
    for start in range(0, count, size):
        is_whole = start + size <= count
        yield slice(start, start + size), *(fast if compiles and is_whole else plain)


# By type too: as tuples, _Simple(3, True) and _EM(3, 1.0) are equal.
@functools.lru_cache(maxsize=None, typed=True)
def _compiled_methods(algorithm: Any) -> tuple[Compiled, Compiled]:
    return Compiled(algorithm.route), Compiled(algorithm.gradients)


def _chunk(tokens: Tensor, num_capsules: int) -> Tensor:
    """`(tokens, heads, embed_dim)` to `(heads, tokens, capsules, dims)`, float32 at least."""
    # Other strides, which depend on the number of all tokens, would be compiled again.
    return by_capsule(tokens.transpose(0, 1).contiguous(), num_capsules)


def _constant(like: Tensor, value: float) -> Tensor:
    """A tensor that is `value` throughout, in the memory of one number."""
    return like.new_full((1,) * like.dim(), value).expand(like.shape)


def _weighted_sum(weights: Tensor, votes: Tensor) -> Tensor:
    """Returns the sum of the votes over heads, weighted by `weights`."""
    return (weights.unsqueeze(-1) * votes).sum(0)


def _over_dims(x: Tensor) -> Tensor:
    """Sums over the dimensions of a capsule; if there is only one, as usual, it is dropped."""
    return x.squeeze(-1) if x.size(-1) == 1 else x.sum(-1)


def _squash_factor(mean: Tensor) -> tuple[Tensor, Tensor]:
    """n / (1 + n²), and n, the length of a capsule's mean."""
    length = mean.abs() if mean.size(-1) == 1 else mean.norm(dim=-1, keepdim=True)
    return length / (1 + length.square()), length


def _squash_backward(mean: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a mean m that was multiplied by f(n) = n / (1 + n²): f·ḡ + f′ (m·ḡ) m/n."""
    factor, length = _squash_factor(mean)
    slope = (1 - length.square()) / (1 + length.square()).square()
    direction = mean / length.clamp(min=torch.finfo(mean.dtype).tiny)  # 0 where there is none
    along = _over_dims(mean * grad).unsqueeze(-1)
    return torch.addcmul(factor * grad, slope * along, direction)
