"""The options of MoH: what fits together, and its sizes where none are given."""

from collections.abc import Mapping
from typing import Any

from headwise.ops.bounds import check_among


def check_options(
    num_heads: int, shared_heads: int, top_k: int, router: str, router_start: str, scaled: bool
) -> None:
    """Raises `ValueError` for options of `MixtureOfHeads` that do not fit together."""
    if not 0 <= shared_heads < max(1, num_heads):
        raise ValueError(
            f"shared_heads is {shared_heads}, expected 0 to {num_heads - 1}: of num_heads = "
            f"{num_heads} at least one is left to select"
        )
    if not 1 <= top_k <= max(1, num_heads - shared_heads):
        raise ValueError(
            f"top_k is {top_k}, expected 1 to {num_heads - shared_heads}: so many of num_heads = "
            f"{num_heads} are not shared"
        )
    check_among("router", router, ("learned", "query-norm"))
    check_among("router_start", router_start, ("random", "neutral"))
    if router == "learned":
        return
    of_learned = {"scaled_gates": (scaled, True), "router_start": (router_start, "random")}
    for name, (given, default) in of_learned.items():
        if given != default:
            raise ValueError(
                f"{name} is {given!r}, expected it to be left out: router is 'query-norm', whose "
                f"gates are 0 or 1 and which has no parameters"
            )


def default_sizes(num_heads: int, options: Mapping[str, Any]) -> dict[str, int]:
    """How many heads are shared and selected, where the options do not say it.

    Three quarters of the heads count at a time, as in the paper's language model from a pretrained
    one: half of them are shared, half of the others selected.
    """
    shared = options.get("shared_heads", num_heads // 2)
    return {"shared_heads": shared, "top_k": max(1, (num_heads - shared) // 2)}
