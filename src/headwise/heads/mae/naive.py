"""MAE's numerics as the equations read, for the tests of the fast ones."""

from itertools import combinations

import torch
from torch import Tensor


def naive_mixture(gates: Tensor, head_outputs: Tensor, dropped_heads: int) -> Tensor:
    """Equations 5 and 6 expert by expert.

    Args:
        gates: `(experts,)`.
        head_outputs: `(heads, embed_dim)`, each head's output oⱼWⱼ.
        dropped_heads: t, how many heads each expert leaves out.
    """
    heads = head_outputs.size(0)
    mixed = torch.zeros_like(head_outputs[0])
    for gate, expert in zip(gates, combinations(range(heads), dropped_heads), strict=True):
        total = sum(head_outputs[j] for j in range(heads) if j not in expert)
        mixed = mixed + gate * heads / (heads - dropped_heads) * total
    return mixed


def naive_running_mean(
    x: Tensor, padding: Tensor | None = None, window: int | None = None
) -> Tensor:
    """The means of `running_mean`, as those of what each position sees."""
    batch, time, _ = x.shape
    seen = torch.ones(batch, time, time, dtype=torch.bool).tril()
    return naive_masked_mean(x, seen if padding is None else seen & ~padding.unsqueeze(1), window)


def naive_masked_mean(x: Tensor, seen: Tensor, window: int | None = None) -> Tensor:
    """The mean of what each position sees, of the last `window` of it, as plain loops.

    `seen` is boolean `(batch, time, time)`, padding not seen.
    """
    out = torch.zeros_like(x)
    for b in range(x.size(0)):
        for t in range(x.size(1)):
            kept = [s for s in range(x.size(1)) if seen[b, t, s]]
            kept = kept if window is None else kept[-window:]
            if kept:
                out[b, t] = sum(x[b, s] for s in kept) / len(kept)
    return out
