"""The options of MAE, and checks of what it is given."""

from math import comb
from typing import Literal, get_args

from torch import nn

from headwise.messages import shown_number
from headwise.ops.bounds import MOST_EXPERTS, check_among, check_positive, check_probability

GateInit = Literal["zero", "default", "xavier"]


def check_gate(
    kind: str,
    window: int | None,
    hidden_dim: int,
    dropout: float,
    init: GateInit,
    scaling: str,
    statistics: str,
) -> None:
    """Raises `ValueError` for options of the gate that there are not, or are out of bounds."""
    check_among("gate", kind, ("learned", "uniform"))
    check_among("gate_init", init, get_args(GateInit))
    check_among("gate_scaling", scaling, ("none", "root"))
    check_among("gate_statistics", statistics, ("kept", "fresh"))
    check_positive(gate_window=1 if window is None else window, gate_hidden_dim=hidden_dim)
    check_probability("gate_dropout", dropout)


def count_experts(num_heads: int, dropped_heads: int) -> int:
    """Returns how many experts there are; raises `ValueError` if it is none, or too many."""
    if not 1 <= dropped_heads < num_heads:
        raise ValueError(
            f"dropped_heads is {dropped_heads}, expected 1 to {num_heads - 1}: an expert keeps at "
            f"least one of num_heads = {num_heads} heads"
        )
    experts = comb(num_heads, dropped_heads)
    if experts > MOST_EXPERTS:
        raise ValueError(
            f"dropped_heads = {dropped_heads} of num_heads = {num_heads} make "
            f"{shown_number(experts)} experts, one for each choice of the heads that are left "
            f"out, expected at most {MOST_EXPERTS:,}: leave out fewer heads, such as 1 or 2"
        )
    return experts


def check_norm(norm: nn.Module) -> None:
    """Raises `TypeError` where an adapter has the batch norm of a gate, and not its statistics."""
    if not isinstance(norm, nn.modules.batchnorm._BatchNorm):
        raise TypeError(
            f"the batch norm of a gate is a {type(norm).__name__}, which does not keep its running "
            f"statistics: leave gate.norm out of what is adapted, or have the whole gate trained "
            f"and saved, as by modules_to_save=['gate']"
        )
