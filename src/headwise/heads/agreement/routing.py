"""Routing by agreement: how much of what each head says goes to which part of the output.

The plain forms of `Simple` and `EM` read like that. The fast ones keep nothing but the votes for
the backward pass and compute the iterations once more there, chunk by chunk of tokens: tokens have
nothing to do with each other, and the tensors of a chunk stay in the processor's cache.

Chunks of large calls are compiled by `torch.compile`, which takes about ten seconds, once on a
machine, and needs a C++ compiler (on a GPU, Triton). Which calls these are depends on nothing but
their size, so that a run that is repeated or resumed computes in the same way. `HEADWISE_COMPILE`
in the environment decides otherwise: 0 compiles nothing, 1 calls of any size that fill a chunk.
"""

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.agreement.em import EM
from headwise.heads.agreement.simple import Simple
from headwise.heads.agreement.votes import Routed, by_capsule, widened
from headwise.ops.precision import without_autocast
from headwise.ops.twins import compute

# Elements of the votes of a chunk that is not compiled: 4 MiB in float32. A GPU wants larger ones,
# since each of their many operators takes as long as a thousandth of a large one.
_CHUNK = 2**20
_GPU_CHUNK = 2**24
# A chunk's tensors are not to take more memory than the votes of all tokens do.
_CHUNKS = 16
_SMALL_CHUNK = 2**17
# Compiled it has few operators, and the smaller, the less of it is filled up with zeros.
_COMPILED_CHUNK = 2**18
# Elements from which on compiling pays within some hundred steps of training: 2 MiB in float32.
_LARGE = 2**19
_BACKEND = "inductor"
_MOST_COMPILED = 256  # sizes and settings in a process


def route(algorithm: Simple | EM, votes: Tensor, *betas: Tensor) -> Routed:
    """Routes votes, each token by itself.

    Args:
        algorithm: how.
        votes: `(..., heads, embed_dim)`; capsule n has columns n·embed_dim/N and following.
        betas: of EM routing, β_A and β_u.

    Example:
        >>> routed = route(Simple(num_capsules=6), torch.randn(2, 5, 4, 12))
        >>> routed.output.shape, routed.weights.shape
        (torch.Size([2, 5, 12]), torch.Size([2, 5, 4]))
    """
    return Routed(*compute(_Chunked(algorithm), votes, *betas))


class _Chunked(NamedTuple):
    """An algorithm in its two implementations; the fast one takes some tokens at a time."""

    algorithm: Any

    def plain(self, votes: Tensor, *betas: Tensor) -> Routed:
        routed: Routed = self.algorithm.plain(votes, *betas)
        return routed

    def fast(self, votes: Tensor, *betas: Tensor) -> Routed:
        tokens = votes.detach().reshape(-1, *votes.shape[-2:])  # (tokens, heads, embed_dim)
        wide = [beta.detach().to(widened(votes.dtype)) for beta in betas]
        routed = []
        with without_autocast(votes):
            for rows, fill, route, _ in _chunks(tokens, self.algorithm):
                count = rows.stop - rows.start
                chunk = _chunk(tokens[rows], fill, self.algorithm.num_capsules)
                capsules, counts, heard = route(chunk, *wide)
                output = capsules[:count].flatten(1).to(votes.dtype)
                routed.append((output, counts[:, :count].t(), heard[:count]))
        chunks = zip(*routed, strict=True)
        joined = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in chunks)
        leading = votes.shape[:-2]
        return Routed(*(each.reshape((*leading, *each.shape[1:])) for each in joined))

    def gradients(self, grad: Tensor, votes: Tensor, *betas: Tensor) -> tuple[Tensor, ...]:
        tokens = votes.detach().reshape(-1, *votes.shape[-2:])
        grad_tokens = torch.empty_like(tokens)  # with the strides of the votes
        grad_output = grad.reshape(tokens.size(0), tokens.size(2))
        wide = [beta.detach().to(widened(votes.dtype)) for beta in betas]
        grad_betas = [torch.zeros_like(beta) for beta in wide]
        with without_autocast(votes):
            for rows, fill, _, gradients in _chunks(tokens, self.algorithm):
                grad_rows = F.pad(grad_output[rows], (0, 0, 0, fill)).contiguous()
                grad_rows = by_capsule(grad_rows, self.algorithm.num_capsules)
                chunk = _chunk(tokens[rows], fill, self.algorithm.num_capsules)
                grad_chunk, parts = gradients(chunk, grad_rows, *wide)
                routed = grad_chunk[:, : rows.stop - rows.start]
                grad_tokens[rows] = routed.flatten(2).transpose(0, 1)
                for total, part in zip(grad_betas, parts, strict=True):
                    total += part
        of_betas = [total.to(beta.dtype) for total, beta in zip(grad_betas, betas, strict=True)]
        return grad_tokens.view(votes.shape), *of_betas


def _chunks(tokens: Tensor, algorithm: Any) -> Iterator[tuple[slice, int, Any, Any]]:
    """Slices of tokens `(tokens, heads, embed_dim)`, with what routes them, and their gradients.

    Compiled chunks are all of one size, whatever the number of tokens: the second entry says how
    many tokens of zeros fill one up.
    """
    count, elements = tokens.size(0), tokens.numel()
    per_token = max(1, tokens.size(1) * tokens.size(2))
    whole = max(1, (_GPU_CHUNK if tokens.is_cuda else _COMPILED_CHUNK) // per_token)
    # Given shares, as the ablation with random ones has them in each layer, are not compiled anew.
    compiles = is_worth_compiling(tokens) and count >= whole and algorithm.shares is None
    route, gradients = algorithm.route, algorithm.gradients
    size = whole
    if compiles:
        route, gradients = _compiled_methods(algorithm)
    else:
        largest, least = (_GPU_CHUNK, _GPU_CHUNK // 4) if tokens.is_cuda else (_CHUNK, _SMALL_CHUNK)
        size = max(1, min(max(elements // _CHUNKS, least), largest) // per_token)
    for start in range(0, max(count, 1), size):  # of no tokens there is one, which is empty
        stop = min(start + size, count)
        yield slice(start, stop), start + size - stop if compiles else 0, route, gradients


# By type too: as tuples, Simple(3, True) and EM(3, 1.0) are equal.
@functools.lru_cache(maxsize=None, typed=True)
def _compiled_methods(algorithm: Any) -> "tuple[Compiled, Compiled]":
    return Compiled(algorithm.route), Compiled(algorithm.gradients)


def _chunk(tokens: Tensor, fill: int, num_capsules: int) -> Tensor:
    """`(tokens, heads, embed_dim)` to `(heads, tokens + fill, capsules, dims)`, float32 at least.

    What fills it up is zeros.
    """
    by_head = F.pad(tokens.transpose(0, 1), (0, 0, 0, fill))
    # Other strides, which depend on the number of all tokens, would be compiled again.
    return by_capsule(by_head.contiguous(), num_capsules)


def is_worth_compiling(x: Tensor) -> bool:
    """Whether a call on a tensor of this size should be compiled."""
    wish = os.environ.get("HEADWISE_COMPILE", "")
    wanted = wish == "1" or (wish == "" and x.numel() >= _LARGE)
    return wanted and _has_compiler(x.device.type)


class Compiled:
    """A function that is compiled at its first call, for each shape of its arguments.

    Where compiling fails it runs as it is from then on, with a warning.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._fast: Callable[..., Any] | None = None
        self._compiled: set[tuple[Any, ...]] = set()  # for which arguments

    def __call__(self, *args: Any) -> Any:
        if self._fast is None:
            self._fast = torch.compile(self.function, backend=_BACKEND, dynamic=False)
        if self._fast is not self.function:
            kind = tuple((x.shape, x.dtype, x.device) for x in args)
            try:
                with nullcontext() if kind in self._compiled else _more_sizes():
                    result = self._fast(*args)
                self._compiled.add(kind)
                return result
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of the compiler; one of the function comes again below
                self._fast = self.function
                reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
                message = "routing runs without torch.compile, which is slower"
                warnings.warn(f"{message}: {reason[0]}", stacklevel=2)
        return self.function(*args)


def _more_sizes() -> AbstractContextManager[None]:
    """Lets more be compiled of a function than PyTorch does.

    It counts all algorithms together, and runs what is beyond its limit of 8 uncompiled.
    """
    return torch._dynamo.config.patch(recompile_limit=_MOST_COMPILED)


@functools.cache
def _has_compiler(device: str) -> bool:
    try:
        if device == "cuda":
            from torch.utils._triton import has_triton

            return has_triton()
        if device == "cpu":
            from torch._inductor.cpp_builder import get_cpp_compiler

            return bool(get_cpp_compiler())
    except Exception:  # no compiler, or a PyTorch that looks for it in another way
        pass
    return False
