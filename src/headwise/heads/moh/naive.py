"""MoH's numerics as the equations read, for the tests of the fast ones."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def naive_softmax(logits: Sequence[float]) -> list[float]:
    """e^x / Σ e^x."""
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def naive_gates(
    shared: Sequence[float],
    routed: Sequence[float],
    kinds: Sequence[float],
    top_k: int,
    scaled: bool = True,
) -> list[float]:
    """The gate of each head at one position, shared heads first, from logits of heads and kinds."""
    p_shared, p_routed = naive_softmax(shared), naive_softmax(routed)
    alpha = naive_softmax(kinds) if shared else [0.0, 1.0]
    chosen = sorted(range(len(routed)), key=lambda i: -routed[i])[:top_k]
    total = sum(p_routed[i] for i in chosen)
    gates = []
    for p in p_shared:
        gates.append(2 * alpha[0] * len(shared) * p if scaled else alpha[0] * p)
    for i, p in enumerate(p_routed):
        kind = 2 * alpha[1] if scaled and shared else alpha[1]
        gate = kind * (top_k * p / total if scaled else p)
        gates.append(gate if i in chosen else 0.0)
    return gates


def naive_query_norm_logits(queries: Sequence[Sequence[float]]) -> list[float]:
    """‖q‖ / s for each routed head at one position, s the standard deviation of all norms."""
    norms = [math.sqrt(sum(x * x for x in q)) for q in queries]
    mean = sum(norms) / len(norms)
    variance = sum((norm - mean) ** 2 for norm in norms) / max(1, len(norms) - 1)
    return [norm / math.sqrt(variance) if variance > 0 else norm for norm in norms]


def naive_quantized_gates(shared: int, routed: Sequence[float], top_k: int) -> list[float]:
    """1 for each shared head and for the K routed heads of largest logits, 0 elsewhere."""
    chosen = sorted(range(len(routed)), key=lambda i: -routed[i])[:top_k]
    return [1.0] * shared + [float(i in chosen) for i in range(len(routed))]


def naive_balance_loss(probability: Tensor, chosen: Tensor, padding: Tensor | None) -> Tensor:
    """Σᵢ Pᵢ fᵢ as plain loops."""
    batch, time, routed = probability.shape
    tokens = [
        (b, t) for b in range(batch) for t in range(time) if padding is None or not padding[b, t]
    ]
    loss = torch.zeros((), dtype=probability.dtype)
    for i in range(routed):
        for token in tokens:
            selects = sum(i in chosen[other].tolist() for other in tokens) / len(tokens)
            loss = loss + probability[token][i] / len(tokens) * selects
    return loss
