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
`simple` and `em` route a chunk. Chunks of large calls are compiled, see `compiling`.
"""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from headwise.heads.agreement.compiling import Compiled, is_worth_compiling
from headwise.heads.agreement.em import EM
from headwise.heads.agreement.naive import naive_em_routing, naive_simple_routing
from headwise.heads.agreement.simple import Simple
from headwise.heads.agreement.votes import (
    INVERSE_TEMPERATURE,
    Activation,
    Normalize,
    Routed,
    by_capsule,
    check_inverse_temperature,
    check_votes,
    widened,
)
from headwise.ops.bounds import check_among
from headwise.ops.precision import without_autocast
from headwise.ops.twins import compute

# Elements of the votes of a chunk: 4 MiB in float32. A GPU wants larger ones.
_CHUNK = 2**20
_GPU_CHUNK = 2**22
# A chunk's tensors are not to take more memory than the votes of all tokens do.
_CHUNKS = 16
_SMALL_CHUNK = 2**17


def simple_routing(
    votes: Tensor,
    *,
    num_capsules: int | None = None,
    iterations: int = 3,
    squash: bool = True,
    normalize: Normalize = "capsules",
    shares: tuple[float, ...] | None = None,
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
        normalize: over what C sums to 1: the `"capsules"` of a head, or the `"heads"` of a capsule,
            as in the authors' public code.
        shares: of each head in every capsule of the first iteration, in place of equal ones.

    Raises:
        ValueError: `num_capsules` does not divide `embed_dim`; no iterations.

    Example:
        >>> routed = simple_routing(torch.randn(2, 5, 4, 12), num_capsules=6)
        >>> routed.output.shape, routed.weights.shape
        (torch.Size([2, 5, 12]), torch.Size([2, 5, 4]))
    """
    num_capsules = check_votes(votes, num_capsules, iterations)
    check_among("normalize", normalize, get_args(Normalize))
    naive = partial(
        naive_simple_routing,
        iterations=iterations,
        squash=squash,
        normalize=normalize,
        shares=shares,
    )
    algorithm = Simple(iterations, squash, normalize == "heads", shares)
    routing = _Routing(algorithm, num_capsules, naive)
    return Routed(*compute(routing, votes))


def em_routing(
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
        beta_a, beta_u: scalars, or one each for a capsule.
        num_capsules: N, which divides `embed_dim`; `embed_dim` if not given.
        iterations: how many M steps; at least 1.
        inverse_temperature: the limit of λ over the iterations; positive.
        activation: what A is: the `"sigmoid"` above; `"standardised"`, the sigmoid of costs
            β_u Σ_h C_{h→n} + χ_n less their mean over capsules, over their deviation, at a λ that
            rises from 1 to 3; or `"none"`, with A = 1 throughout. The last two are in the authors'
            public code, at two commits.
        shares: of each head in every capsule of the first iteration, in place of equal ones.

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
    check_among("activation", activation, get_args(Activation))
    how: dict[str, Any] = {
        "iterations": iterations,
        "inverse_temperature": inverse_temperature,
        "activation": activation,
        "shares": shares,
    }
    routing = _Routing(EM(**how), num_capsules, partial(naive_em_routing, **how))
    return Routed(*compute(routing, votes, beta_a, beta_u))


class _Routing(NamedTuple):
    """An algorithm in its two implementations; the fast one takes some tokens at a time."""

    algorithm: Any
    num_capsules: int
    naive: Callable[..., Routed]

    def plain(self, votes: Tensor, *betas: Tensor) -> Routed:
        return self.naive(votes, *betas, num_capsules=self.num_capsules)

    def fast(self, votes: Tensor, *betas: Tensor) -> Routed:
        tokens = votes.detach().reshape(-1, *votes.shape[-2:])  # (tokens, heads, embed_dim)
        output = tokens.new_empty(tokens.size(0), tokens.size(2))
        weights = tokens.new_empty(tokens.shape[:2], dtype=widened(votes.dtype))
        heard = weights.new_empty(tokens.size(0))
        wide = [beta.detach().to(weights.dtype) for beta in betas]
        with without_autocast(votes):
            for rows, route, _ in _chunks(tokens, self.algorithm):
                chunk = _chunk(tokens[rows], self.num_capsules)
                capsules, counts, heard[rows] = route(chunk, *wide)
                output[rows] = capsules.flatten(1)
                weights[rows] = counts.t()
        leading = votes.shape[:-2]
        output = output.view(*leading, votes.size(-1))
        return Routed(output, weights.view(*leading, votes.size(-2)), heard.view(leading))

    def gradients(self, grad: Tensor, votes: Tensor, *betas: Tensor) -> tuple[Tensor, ...]:
        tokens = votes.detach().reshape(-1, *votes.shape[-2:])
        grad_tokens = torch.empty_like(tokens)  # with the strides of the votes
        grad_output = grad.reshape(tokens.size(0), tokens.size(2))
        wide = [beta.detach().to(widened(votes.dtype)) for beta in betas]
        grad_betas = [torch.zeros_like(beta) for beta in wide]
        with without_autocast(votes):
            for rows, _, gradients in _chunks(tokens, self.algorithm):
                grad_rows = by_capsule(grad_output[rows].contiguous(), self.num_capsules)
                chunk = _chunk(tokens[rows], self.num_capsules)
                grad_chunk, parts = gradients(chunk, grad_rows, *wide)
                grad_tokens[rows] = grad_chunk.flatten(2).transpose(0, 1)
                for total, part in zip(grad_betas, parts, strict=True):
                    total += part
        of_betas = [total.to(beta.dtype) for total, beta in zip(grad_betas, betas, strict=True)]
        return grad_tokens.view(votes.shape), *of_betas


def _chunks(tokens: Tensor, algorithm: Any) -> Iterator[tuple[slice, Any, Any]]:
    """Slices of tokens `(tokens, heads, embed_dim)`, with what routes them, and their gradients."""
    count, elements = tokens.size(0), tokens.numel()
    largest = _GPU_CHUNK if tokens.is_cuda else _CHUNK
    per_token = max(1, tokens.size(1) * tokens.size(2))
    whole = max(1, largest // per_token)
    # Compiled chunks are all of one size, whatever the number of tokens; the rest, and calls that
    # fill no chunk, are not compiled.
    compiles = is_worth_compiling(tokens) and count >= whole
    # Given shares, as the ablation with random ones has them in each layer, are not compiled anew.
    compiles = compiles and algorithm.shares is None
    small = min(max(elements // _CHUNKS, _SMALL_CHUNK), largest) // per_token
    size = whole if compiles else max(1, small)
    plain, fast = (algorithm.route, algorithm.gradients), _compiled_methods(algorithm)
    for start in range(0, count, size):
        is_whole = start + size <= count
        yield slice(start, start + size), *(fast if compiles and is_whole else plain)


# By type too: as tuples, Simple(3, True) and EM(3, 1.0) are equal.
@functools.lru_cache(maxsize=None, typed=True)
def _compiled_methods(algorithm: Any) -> tuple[Compiled, Compiled]:
    return Compiled(algorithm.route), Compiled(algorithm.gradients)


def _chunk(tokens: Tensor, num_capsules: int) -> Tensor:
    """`(tokens, heads, embed_dim)` to `(heads, tokens, capsules, dims)`, float32 at least."""
    # Other strides, which depend on the number of all tokens, would be compiled again.
    return by_capsule(tokens.transpose(0, 1).contiguous(), num_capsules)
