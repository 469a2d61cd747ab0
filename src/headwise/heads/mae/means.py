"""What MAE's gates look at: the mean of a sequence, of what came before, of what a mask shows."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.attention import Inputs
from headwise.heads.cache import AttentionCache
from headwise.ops.masks import blocks, causal_mask, real_positions
from headwise.ops.precision import without_autocast


class Mean(NamedTuple):
    """Means, zeros where there is nothing to average, and of how many positions each is one."""

    mean: Tensor  # (batch, time, embed_dim)
    number: Tensor  # (batch, time, 1), at least 1


class View(NamedTuple):
    """What gates look at: one mean for a sequence, or one for each of its queries."""

    mean: Tensor  # (batch, 1 or queries, embed_dim)
    number: Tensor  # (batch, 1 or queries, 1)
    padding: Tensor | None  # (batch, 1 or queries), `True` where there is nothing to look at
    each: bool  # each query has a gate of its own


def look(inputs: Inputs, causal: bool, num_heads: int, window: int | None) -> View:
    """What the gates of one call look at; where it is `causal`, no position may see later ones."""
    each, seen = _what_is_seen(inputs, causal, num_heads, window)
    x, padding = inputs.query, inputs.query_padding
    # Sums over many positions, and batch norm, want more digits than bf16 has.
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    if seen is not None:
        mean = masked_mean(x, seen, padding, inputs.cache)
        return View(*mean, ~seen.any(-1) if padding is None else padding | ~seen.any(-1), each)
    if each:
        return View(*running_mean(x, padding, window, inputs.cache), padding, each)
    real = real_positions(x, padding).unsqueeze(-1)  # (batch, time, 1)
    count = real.sum(1, keepdim=True).clamp(min=1)
    if padding is None and x.size(1):
        return View(x.mean(1, keepdim=True), count, None, each)
    return View((x * real).sum(1, keepdim=True) / count, count, ~real.bool().any(1), each)


def each_decides(inputs: Inputs, causal: bool) -> bool:
    """Whether each query has a gate of its own, whatever an attention mask says."""
    return causal or (inputs.cache is not None and not inputs.cache.static)


def _what_is_seen(
    inputs: Inputs, causal: bool, num_heads: int, window: int | None
) -> tuple[bool, Tensor | None]:
    """Whether each query has a gate of its own, and what each of these sees.

    That is boolean `(batch or 1, queries, queries)`, `True` where row t sees column s; None if it
    is all positions up to the gate's own, padding aside.
    """
    each, queries = each_decides(inputs, causal), inputs.query.size(1)
    if inputs.attn_mask is None or not inputs.is_self_attention:
        return each, None
    if inputs.attn_mask.size(-1) > queries:
        raise ValueError(
            "attn_mask is given with a cache that holds positions, of which a gate knows the sum "
            "alone: leave out attn_mask (a causal step needs none; padding is key_padding_mask), "
            "or compute without a cache"
        )
    blocked, padding = _blocked_by_all(inputs.attn_mask, num_heads), inputs.query_padding
    hidden = blocked  # what is hidden at padding, and from it, does not count
    if padding is not None:
        hidden = blocked & ~(padding.unsqueeze(1) | padding.unsqueeze(2))
        blocked = blocked | padding.unsqueeze(1)
    if not (each or hidden.any()):
        return False, None
    if causal:
        blocked = blocked | causal_mask(queries, queries, device=blocked.device)
    if window is None:
        return True, ~blocked
    if inputs.cache is not None or not causal:
        raise ValueError(
            f"gate_window is {window}, which counts back from a gate's position, expected "
            f"is_causal=True, and no cache, where an attn_mask is given; or leave out gate_window"
        )
    return True, last_seen(~blocked, window)


def _blocked_by_all(attn_mask: Tensor, heads: int) -> Tensor:
    """Where a mask lets no head attend: boolean `(batch or 1, queries, keys)`."""
    blocked = blocks(attn_mask)
    if blocked.dim() == 3:
        blocked = blocked.unflatten(0, (-1, heads))
    return blocked.all(1) if blocked.dim() == 4 else blocked.unsqueeze(0)


def running_mean(
    x: Tensor,
    padding: Tensor | None = None,
    window: int | None = None,
    cache: AttentionCache | None = None,
) -> Mean:
    """Of the positions up to each position, or of the last `window` of them.

        m_t = mean of x_s over s ≤ t, s not padding, fewer than window such positions in (s, t]

    Padding takes no place in a window: wherever it stands, the means are those without it. A cache
    remembers what earlier calls have seen, while decoding step by step.
    """
    counted = _counted(x, padding)
    if window is not None:
        return _mean(_window_sums(counted, padding, window, cache))
    return _mean(counted.cumsum(1) if cache is None else _sums(counted, cache))


def masked_mean(
    x: Tensor, seen: Tensor, padding: Tensor | None = None, cache: AttentionCache | None = None
) -> Mean:
    """Of the positions that each position sees, and of all that a cache has seen before.

        m_t = mean of x_s over the s that t sees, s not padding

    `seen` is boolean `(batch or 1, time, time)`, `True` where row t sees column s. The memory in
    the cache is that of `running_mean`.
    """
    counted = _counted(x, padding)
    with without_autocast(x):
        total = seen.to(x.dtype) @ counted
    return _mean(total if cache is None else _sums(counted, cache, total))


def last_seen(seen: Tensor, window: int) -> Tensor:
    """Keeps in each row of a boolean mask only the last `window` positions that are `True`.

    >>> last_seen(torch.tensor([[True, True, False, True]]), window=2).int().tolist()
    [[0, 1, 0, 1]]
    """
    return seen & (seen.flip(-1).cumsum(-1).flip(-1) <= window)


def _counted(x: Tensor, padding: Tensor | None) -> Tensor:
    """Zeros at padding, and the count of real positions as one more channel, to sum with them."""
    if padding is None:
        return F.pad(x, (0, 1), value=1.0)  # (batch, time, embed_dim + 1)
    real = real_positions(x, padding).unsqueeze(-1)
    return torch.cat([x * real, real], dim=-1)


def _mean(total: Tensor) -> Mean:
    """Of sums whose last channel is the number of summands."""
    count = total[..., -1:].detach().clamp(min=1)  # a graph would keep the sums
    return Mean(total[..., :-1] / count, count)


def _sums(counted: Tensor, cache: AttentionCache, seen: Tensor | None = None) -> Tensor:
    """The sum of all that a cache has seen before, and of what each position sees of this call.

    That is all up to it if `seen`, of the shape of `counted`, is not given. The cache remembers the
    sums up to each position.
    """
    past = cache.recall("total", 1, counted)
    time = counted.size(1)
    sums = past + (counted if time == 1 else counted.cumsum(1))
    found = sums if seen is None else past + seen
    cache.remember("total", sums if time else past, time)
    return found


def _window_sums(
    counted: Tensor, padding: Tensor | None, window: int, cache: AttentionCache | None
) -> Tensor:
    time = counted.size(1)
    if cache is None:
        window = min(window, max(time, 1))  # a longer one sees no more
        past = counted.new_zeros(counted.size(0), window, counted.size(-1))
    else:
        past = cache.recall("recent", window, counted, skip_empty=True)
    seen = torch.cat([past, counted], dim=1)  # (batch, window + time, embed_dim + 1)
    if cache is not None:
        cache.remember("recent", seen, time)
    # The difference of two long sums loses digits, so they get more of them.
    exact = seen.double() if seen.device.type != "mps" else seen
    before = F.pad(exact.cumsum(1), (0, 0, 1, 0))  # begins with the sum of none
    ends, starts = before[:, window + 1 :], before[:, 1 : time + 1]
    if padding is not None:
        first = _window_starts(seen[..., -1] > 0, window)[:, window:]
        starts = before.gather(1, first.unsqueeze(-1).expand_as(ends))
    return (ends - starts).to(seen.dtype)


def _window_starts(real: Tensor, window: int) -> Tensor:
    """Where the window of the last `window` real positions begins, for each position.

    It begins behind the last real position that it leaves out; padding there counts for nothing.

    >>> _window_starts(torch.tensor([[True, False, True, True, False]]), window=2).tolist()
    [[0, 0, 0, 1, 1]]
    """
    count = real.cumsum(1)  # of real positions up to each one
    # A window that leaves out the first n real positions begins right after the n-th: starts[n].
    behind = torch.arange(1, real.size(1) + 1, device=real.device)
    starts = count.new_zeros(real.size(0), real.size(1) + 1).scatter(1, count * real, behind * real)
    return starts.gather(1, (count - window).clamp(min=0))
