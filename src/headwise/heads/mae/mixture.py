"""Numerics of MAE's gates: the mixture as one scale per head, and what a gate sees.

Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
https://arxiv.org/abs/2005.06537.
"""

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.heads.cache import AttentionCache
from headwise.ops.masks import real_positions
from headwise.ops.precision import without_autocast


class Mean(NamedTuple):
    """Of some positions each, and of how many."""

    mean: Tensor  # (batch, time, embed_dim)
    number: Tensor  # (batch, time, 1), at least 1


def left_out_heads(num_heads: int, dropped_heads: int) -> Tensor:
    """`(experts, heads)`, 1 where the expert leaves the head out, in the order of
    `itertools.combinations`.

    >>> left_out_heads(3, 1).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    experts = torch.tensor(list(combinations(range(num_heads), dropped_heads)))
    return torch.zeros(len(experts), num_heads).scatter_(1, experts, 1.0)


def head_scales(gates: Tensor, left_out: Tensor) -> Tensor:
    """How much each head counts in a mixture of experts that each leave t of h heads out.

        aⱼ = h/(h−t) · (1 − Σ_{S∋j} g_S)

    With it, Σ_S g_S · h/(h−t) Σ_{j∉S} oⱼWⱼ (equations 5 and 6 of the paper) is Σⱼ aⱼ oⱼWⱼ: no
    expert is computed by itself.

    Args:
        gates: `(..., experts)`, sums to 1.
        left_out: `(experts, heads)`, from `left_out_heads`.

    Returns:
        `(..., heads)`; all ones for uniform gates.
    """
    # h/(h−t) = 1/(1 − t/h). So divided, uniform gates give 1 without rounding where t is 1.
    with without_autocast(gates):
        return (1 - gates @ left_out) / (1 - left_out.mean(0))


def sequence_mean(x: Tensor, padding: Tensor | None = None) -> Tensor:
    """Mean over time without padding: `(batch, time, embed_dim)` to `(batch, embed_dim)`.

    `padding` is boolean `(batch, time)`, `True` at padding. An all-padding sequence gives zeros.
    """
    if padding is None and x.size(1):
        return x.mean(1)
    real = real_positions(x, padding).unsqueeze(-1)  # (batch, time, 1)
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def running_mean(
    x: Tensor,
    padding: Tensor | None = None,
    window: int | None = None,
    cache: AttentionCache | None = None,
) -> Mean:
    """Mean of the positions up to each position (of the last `window` of them, if given).

        m_t = mean of x_s over s ≤ t, s not padding, fewer than window such positions in (s, t]

    Padding takes no place in a window: wherever it stands, the means are those without it.

    Args:
        x: `(batch, time, embed_dim)`.
        padding: boolean `(batch, time)`, `True` at padding.
        window: how many positions to look back, padding not counted, the position itself included.
        cache: remembers what earlier calls have seen, while decoding step by step.

    Returns:
        The means; zeros where nothing but padding has been seen.
    """
    real = real_positions(x, padding)
    # The count of real positions travels as one more channel: (batch, time, embed_dim + 1).
    seen = torch.cat([x * real.unsqueeze(-1), real.unsqueeze(-1)], dim=-1)
    time = x.size(1)
    if window is None:
        total = seen.cumsum(1)
        if cache is not None:
            past = cache.recall("total", 1, seen)
            total = past + total
            cache.remember("total", torch.cat([past, total], dim=1), time)
    else:
        if cache is None:
            window = min(window, max(time, 1))  # a longer one sees no more
            past = seen.new_zeros(x.size(0), window, seen.size(-1))
        else:
            past = cache.recall("recent", window, seen, skip_empty=True)
        seen = torch.cat([past, seen], dim=1)  # (batch, window + time, embed_dim + 1)
        if cache is not None:
            cache.remember("recent", seen, time)
        # The difference of two long sums loses digits, so they get more of them.
        exact = seen.double() if seen.device.type != "mps" else seen
        before = torch.cat([torch.zeros_like(exact[:, :1]), exact.cumsum(1)], dim=1)
        ends = before[:, window + 1 :]
        if padding is None:
            starts = before[:, 1 : time + 1]
        else:
            first = _window_starts(seen[..., -1] > 0, window)[:, window:]
            starts = before.gather(1, first.unsqueeze(-1).expand_as(ends))
        total = (ends - starts).to(seen.dtype)
    return _mean(total)


def masked_mean(
    x: Tensor, seen: Tensor, padding: Tensor | None = None, cache: AttentionCache | None = None
) -> Mean:
    """Mean of the positions that each position sees, and of all that a cache has seen before.

        m_t = mean of x_s over the s that t sees, s not padding

    Args:
        x: `(batch, time, embed_dim)`.
        seen: boolean `(batch or 1, time, time)`, `True` where row t sees column s.
        padding: boolean `(batch, time)`, `True` at padding.
        cache: as in `running_mean`, whose memory it shares.

    Returns:
        The means; zeros where nothing but padding is seen.
    """
    real = real_positions(x, padding).unsqueeze(-1)
    counted = torch.cat([x * real, real], dim=-1)  # (batch, time, embed_dim + 1)
    with without_autocast(x):
        total = seen.to(x.dtype) @ counted
    if cache is not None:
        past = cache.recall("total", 1, counted)
        cache.remember("total", torch.cat([past, past + counted.cumsum(1)], dim=1), x.size(1))
        total = total + past
    return _mean(total)


def _mean(total: Tensor) -> Mean:
    """Of sums whose last channel is the number of summands."""
    count = total[..., -1:].clamp(min=1)
    return Mean(total[..., :-1] / count, count)


def last_seen(seen: Tensor, window: int) -> Tensor:
    """Leaves in each row of a boolean mask the last `window` of what is seen.

    >>> last_seen(torch.tensor([[True, True, False, True]]), window=2).int().tolist()
    [[0, 1, 0, 1]]
    """
    return seen & (seen.flip(-1).cumsum(-1).flip(-1) <= window)


def _window_starts(real: Tensor, window: int) -> Tensor:
    """For each position, where the window of the last `window` real positions begins.

    It begins behind the last real position that it leaves out; padding there counts for nothing.

    Args:
        real: boolean `(batch, time)`, `False` at padding.
        window: how many real positions it has.

    Returns:
        `(batch, time)`.

    >>> _window_starts(torch.tensor([[True, False, True, True, False]]), window=2).tolist()
    [[0, 0, 0, 1, 1]]
    """
    count = real.cumsum(1)  # of real positions up to each one
    # A window that leaves out the first n real positions begins right after the n-th: starts[n].
    behind = torch.arange(1, real.size(1) + 1, device=real.device)
    starts = count.new_zeros(real.size(0), real.size(1) + 1).scatter(1, count * real, behind * real)
    return starts.gather(1, (count - window).clamp(min=0))


def draw_expert(gates: Tensor, noise: Tensor) -> Tensor:
    """One expert per distribution, one-hot, each as often as its gate says.

        argmax_S g_S / e_S,  e_S = −log(1 − u_S) exponentially distributed

    Distributions that share their noise draw the same expert unless their gates differ enough to
    decide otherwise, and equal ones always do.

    Args:
        gates: `(..., experts)`, sums to 1.
        noise: u, `(..., experts)`, uniform in [0, 1); what it has size 1 in is shared.

    Returns:
        `(..., experts)`, a single 1 in each row.

    >>> draw_expert(torch.tensor([[0.2, 0.8], [0.7, 0.3]]), torch.tensor([0.5, 0.4]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    # A least e keeps an expert of gate 0 from 0/0.
    e = -torch.log1p(-noise.to(gates.dtype)).clamp(max=-torch.finfo(gates.dtype).tiny)
    drawn = (gates / e).argmax(-1, keepdim=True)
    return torch.zeros_like(gates).scatter_(-1, drawn, 1.0)
