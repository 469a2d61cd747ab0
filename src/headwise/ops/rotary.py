"""Rotary positions: queries and keys are turned by angles that grow with their position.

Su et al. 2021, *RoFormer: Enhanced Transformer with Rotary Position Embedding*,
https://arxiv.org/abs/2104.09864. Channels i and i + r/2 of the first r channels of a head are a
pair, as in transformers, and a token at position t turns them by the angle t θᵢ:

    θᵢ = base^(-2i/r),   (xᵢ, xᵢ₊ᵣ⸝₂) ← (xᵢ cos tθᵢ - xᵢ₊ᵣ⸝₂ sin tθᵢ,  xᵢ₊ᵣ⸝₂ cos tθᵢ + xᵢ sin tθᵢ)

so that the product of a query and a key depends on the distance of their positions alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

DEFAULT_BASE = 10_000.0
_LENGTH = "original_max_position_embeddings"
# What each type reads beside `rope_theta` and `partial_rotary_factor`.
KNOWN_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", _LENGTH, "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", _LENGTH, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
}


class Rotary:
    """The turns of the positions of one call; called with queries or keys, it turns them.

    Args:
        positions: of the tokens of the call, integers `(time,)` or `(batch, time)`.
        parameters: transformers' `rope_parameters`: `rope_theta`, the base (10,000);
            `partial_rotary_factor`, the part of a head's channels that is turned (1); `rope_type`
            for longer texts than those of training: `default`, `linear`, `llama3` or `yarn`, each
            with its own parameters, as transformers has them.

    Shape:
        x `(batch, heads, time, head_dim)`; output the same. Angles are in radians.

    Example:
        >>> turn = Rotary(torch.arange(3))
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
        >>> turn(x)[0, 0]
        tensor([[ 1.0000,  0.0000],
                [ 0.5403,  0.8415],
                [-0.4161,  0.9093]])
    """

    def __init__(self, positions: Tensor, parameters: Mapping[str, Any] | None = None) -> None:
        self.positions = positions
        self.parameters = {} if parameters is None else dict(parameters)
        # Layers of one model ask for the same again.
        self.tables: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        key = x.size(-1), exact, x.device  # layers may be on several devices
        if key not in self.tables:
            self.tables[key] = self._table(*key)
        cosines, sines = self.tables[key]  # each (batch or 1, 1, time, r)
        turned, rest = x[..., : cosines.size(-1)], x[..., cosines.size(-1) :]
        first, second = turned.chunk(2, dim=-1)
        turned = (turned * cosines + torch.cat([-second, first], dim=-1) * sines).to(x.dtype)
        return torch.cat([turned, rest], dim=-1) if rest.size(-1) else turned

    def _table(
        self, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        rates, scale = frequencies(self.parameters, head_dim, device, dtype)
        # (batch or none, time, r / 2)
        angles = self.positions.to(device, dtype).unsqueeze(-1) * rates
        angles = torch.cat([angles, angles], dim=-1)
        angles = angles.unsqueeze(-3) if angles.dim() == 3 else angles
        return angles.cos() * scale, angles.sin() * scale


def frequencies(
    parameters: Mapping[str, Any], head_dim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, float]:
    """The θᵢ of a head, `(r / 2,)`, and what cosines and sines are multiplied by.

    >>> frequencies({"rope_theta": 100.0}, 4, torch.device("cpu"), torch.float32)
    (tensor([1.0000, 0.1000]), 1.0)
    """
    if parameters.get("rope_type", "default") != "default":
        # transformers takes long to import, and most heads do without it.
        from headwise.transformers_internals import scaled_rotary_frequencies

        rates, scale = scaled_rotary_frequencies(parameters, head_dim, device)
        return rates.to(dtype), scale
    width = rotary_width(parameters, head_dim)
    channels = torch.arange(0, width, 2, device=device).to(dtype) / width
    return 1.0 / parameters.get("rope_theta", DEFAULT_BASE) ** channels, 1.0


def rotary_width(parameters: Mapping[str, Any], head_dim: int) -> int:
    """r, how many channels of a head are turned.

    Raises:
        ValueError: they are no pairs.
    """
    share = parameters.get("partial_rotary_factor", 1.0)
    width = int(head_dim * share)
    if not 0 < width <= head_dim or width % 2:
        raise ValueError(
            f"rope_parameters turn {width} channels of a head (partial_rotary_factor = {share} of "
            f"head_dim = {head_dim}), expected an even number from 2 to {head_dim}: choose another "
            f"part, or another width of heads"
        )
    return width


def check_rope_parameters(parameters: Any, head_dim: int) -> None:
    """Raises `ValueError` unless `Rotary` can take these parameters for heads of this width."""
    if not isinstance(parameters, Mapping):
        raise ValueError(
            f"rope_parameters is {parameters!r}, expected a mapping such as {{rope_theta: 10000}}"
        )
    kind = parameters.get("rope_type", "default")
    if kind not in KNOWN_TYPES:
        raise ValueError(
            f"rope_parameters.rope_type is {kind!r}, expected one of {', '.join(KNOWN_TYPES)}; "
            f"types that change with the length of a text are not supported"
        )
    known = ("rope_theta", "partial_rotary_factor", *KNOWN_TYPES[kind])
    for name, value in parameters.items():
        if name == "rope_type" or (name == "type" and value == kind):  # its name of old
            continue
        if name not in known:
            raise ValueError(
                f"rope_parameters has {name!r}, but rope_type {kind!r} has {', '.join(known)} alone"
            )
        if name != "truncate" and not (isinstance(value, (int, float)) and value > 0):
            raise ValueError(f"rope_parameters.{name} is {value!r}, expected a positive number")
    rotary_width(parameters, head_dim)
    try:
        with torch.device("cpu"):  # models are built on the meta device too
            frequencies(parameters, head_dim, torch.device("cpu"), torch.float32)
    except KeyError as error:
        raise ValueError(
            f"rope_parameters has no {error.args[0]!r}, which rope_type {kind!r} needs"
        ) from error
