"""The options of routing by agreement, and checks of what it is given."""

from collections.abc import Mapping
from typing import Any, get_args

from headwise.heads.agreement.votes import Activation, Normalize
from headwise.ops.bounds import check_among, check_positive

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "authors": {"inputs": "all", "normalize": "heads", "activation": "none"},
}


def check_routing(
    embed_dim: int, num_capsules: int | None, iterations: int, inverse_temperature: float
) -> None:
    """Raises `ValueError` unless routing of this size is possible, and nothing overflows."""
    if num_capsules is not None and (num_capsules < 1 or embed_dim % num_capsules):
        raise ValueError(
            f"num_capsules is {num_capsules}, expected a divisor of embed_dim = {embed_dim}: a "
            f"capsule has embed_dim / num_capsules dimensions"
        )
    check_positive(iterations=iterations, inverse_temperature=inverse_temperature)


def check_choices(
    routing: str, inputs: str, normalize: str, activation: str, vote_gain: float | None
) -> None:
    """Raises `ValueError` for options that there are not, or a scale out of bounds."""
    check_among("routing", routing, ("em", "simple"))
    check_among("inputs", inputs, ("head", "all"))
    check_among("normalize", normalize, get_args(Normalize))
    check_among("activation", activation, get_args(Activation))
    if vote_gain is not None:
        check_positive(vote_gain=vote_gain)
