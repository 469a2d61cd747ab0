"""How many examples are tried, and the strategies that several test files share."""

import os
from itertools import pairwise
from typing import Any

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from systems import as_float
from torch import Tensor

PROFILE = os.environ.get("HEADWISE_FUZZ", "suite")

# Torch draws from a generator of its own, which Hypothesis does not know: each example seeds it.
seeds = st.integers(0, 2**31 - 1)


def examples(suite: int, long: int, *, shrinks: bool = True) -> settings:
    """Returns how often a test is tried: in the suite, and in each round of `make fuzz`.

    Args:
        suite, long: how many examples.
        shrinks: whether an example that fails is made smaller, which runs the test many times.
    """
    count = suite if PROFILE == "suite" else long
    phases = [Phase.generate, *([Phase.shrink] if shrinks else [])]
    return settings(settings.get_profile(PROFILE), max_examples=count, phases=phases)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def cuts(time: int) -> st.SearchStrategy[list[int]]:
    """The lengths of the pieces of a sequence that is cut at random."""
    places = st.sets(st.integers(1, time - 1)) if time > 1 else st.just(set())

    def pieces(at: set[int]) -> list[int]:
        bounds = [0, *sorted(at), time]
        return [end - start for start, end in pairwise(bounds)]

    return places.map(pieces)


@st.composite
def paddings(draw: st.DrawFn, batch: int, time: int) -> Tensor:
    """Boolean `(batch, time)`, `True` at padding: on the right, on the left, or anywhere."""
    where = draw(st.sampled_from(["right", "left", "anywhere"]))
    rows = []
    for _ in range(batch):
        real = draw(st.integers(1, time))
        row = [False] * real + [True] * (time - real)
        if where == "anywhere":
            row = draw(st.permutations(row))
        rows.append(row[::-1] if where == "left" else row)
    return torch.tensor(rows)


@st.composite
def masks(
    draw: st.DrawFn, batch: int, heads: int, queries: int, keys: int, *, per_head: bool = True
) -> dict[str, Any]:
    """The masks of one call, in any form that they may have."""
    torch.manual_seed(draw(seeds))
    given: dict[str, Any] = {"is_causal": queries == keys and draw(st.booleans())}
    if draw(st.booleans()):
        padding = draw(paddings(batch, keys))
        given["key_padding_mask"] = padding if draw(st.booleans()) else as_float(padding)
    shapes = [(queries, keys), (batch, 1, queries, keys)]
    if per_head:
        shapes += [(batch * heads, queries, keys), (batch, heads, queries, keys)]
    shape = draw(st.none() | st.sampled_from(shapes))
    if shape is not None:
        boolean = torch.rand(shape) < draw(st.sampled_from([0.2, 0.6]))
        boolean[..., 0, -1] = False  # one that hides the whole future says that queries are causal
        given["attn_mask"] = boolean if draw(st.booleans()) else random(*shape)
    return given
