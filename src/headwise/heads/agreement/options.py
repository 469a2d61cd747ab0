"""The options of routing by agreement, and checks of what it is given."""

from collections.abc import Mapping
from typing import Any, get_args

from headwise.heads.agreement.votes import Activation, Normalize
from headwise.ops.bounds import check_among, check_gain, check_number

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "authors": {"inputs": "all", "normalize": "heads", "activation": "none"},
}

# Activations are steps from 0 to 1 long before; float32 overflows in what is beyond 10^30 or so.
_MOST_INVERSE_TEMPERATURE = 1e6
_MOST_ITERATIONS = 1000


def check_routing(
    embed_dim: int, num_capsules: int | None, iterations: int, inverse_temperature: float
) -> None:
    """Raises `ValueError` unless routing of this size is possible, and nothing overflows."""
    if num_capsules is not None and (num_capsules < 1 or embed_dim % num_capsules):
        raise ValueError(
            f"num_capsules is {num_capsules}, expected a divisor of embed_dim = {embed_dim}: a "
            f"capsule has embed_dim / num_capsules dimensions"
        )
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}, expected at least 1")
    check_number("iterations", iterations, _MOST_ITERATIONS)
    if not 0 < inverse_temperature <= _MOST_INVERSE_TEMPERATURE:
        raise ValueError(
            f"inverse_temperature is {inverse_temperature}, expected a positive number, at most "
            f"{_MOST_INVERSE_TEMPERATURE:,.0f}"
        )


def check_choices(
    routing: str, inputs: str, normalize: str, activation: str, vote_gain: float | None
) -> None:
    """Raises `ValueError` for options that there are not, or a scale out of bounds."""
    check_among("routing", routing, ("em", "simple"))
    check_among("inputs", inputs, ("head", "all"))
    check_among("normalize", normalize, get_args(Normalize))
    check_among("activation", activation, get_args(Activation))
    if vote_gain is not None:
        check_gain("vote_gain", vote_gain)
