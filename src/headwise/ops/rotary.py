"""Rotary positions: queries and keys are turned by angles that grow with their position.

Su et al. 2021, *RoFormer: Enhanced Transformer with Rotary Position Embedding*,
https://arxiv.org/abs/2104.09864. Channels i and i + r/2 of the first r channels of a head are a
pair, as in transformers, and a token at position t turns them by the angle t θᵢ:

    θᵢ = base^(-2i/r),   (xᵢ, xᵢ₊ᵣ⸝₂) ← (xᵢ cos tθᵢ - xᵢ₊ᵣ⸝₂ sin tθᵢ,  xᵢ₊ᵣ⸝₂ cos tθᵢ + xᵢ sin tθᵢ)

so that the product of a query and a key depends on the distance of their positions alone.
"""

from contextlib import nullcontext

import torch
from torch import Tensor

from headwise.ops.layers import is_traced


class Rotary:
    """The turns of the positions of one call; called with queries or keys, it turns them.

    Args:
        positions: of the tokens of the call, integers `(time,)` or `(batch, time)`.
        rates: the angles θᵢ in radians, `(r / 2,)`; `rotary_rates` computes the usual ones.
        scale: factor of cosines and sines, which some methods for longer texts need.

    Shape:
        x `(batch, heads, time, head_dim)`; output the same.

    Example:
        >>> turn = Rotary(torch.arange(2), rotary_rates(2))
        >>> turn(torch.tensor([1.0, 0.0]).expand(1, 1, 2, 2))[0, 0]
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
    """

    def __init__(self, positions: Tensor, rates: Tensor, scale: float = 1.0) -> None:
        self.positions, self.rates, self.scale = positions, rates, scale
        self.is_traced = is_traced()
        # Layers of one model ask for the same again, on one device or on several.
        self.tables: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        key = torch.promote_types(x.dtype, torch.float32), x.device
        # Each (batch or 1, 1, time, r).
        cosines, sines = self.tables[key] if key in self.tables else self._new_table(key)
        turned, rest = x[..., : cosines.size(-1)], x[..., cosines.size(-1) :]
        first, second = turned.chunk(2, dim=-1)
        turned = (turned * cosines + torch.cat([-second, first], dim=-1) * sines).to(x.dtype)
        return torch.cat([turned, rest], dim=-1) if rest.size(-1) else turned

    def _new_table(self, key: tuple[torch.dtype, torch.device]) -> tuple[Tensor, Tensor]:
        traced = is_traced()
        with nullcontext() if traced else torch.inference_mode(False):  # a later call may learn
            table = self._table(*key)
        if self.is_traced or not traced:  # what a compiler makes is of no use behind it
            self.tables[key] = table
        return table

    def _table(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        # (batch or none, time, r / 2)
        angles = self.positions.to(device, dtype).unsqueeze(-1) * self.rates.to(device, dtype)
        angles = torch.cat([angles, angles], dim=-1)
        angles = angles.unsqueeze(-3) if angles.dim() == 3 else angles
        return angles.cos() * self.scale, angles.sin() * self.scale


def rotary_rates(width: int, base: float = 10_000.0) -> Tensor:
    """θᵢ = base^(-2i/r) of the r channels that are turned, `(r / 2,)`.

    >>> rotary_rates(4, base=100.0)
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)
