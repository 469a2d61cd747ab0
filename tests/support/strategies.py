"""What hypothesis draws for systems: options, blocks, masks, paddings, steps of beam search."""

import inspect
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from hypothesis import reject, settings
from hypothesis import strategies as st
from support.forms import DIM, HEADS, NINE, build
from torch import Tensor

# Of what takes long where there are many subjects: a third of the profile's examples.
fewer = settings(max_examples=max(1, settings().max_examples // 3))
# Numbers that fit the sizes of `support.forms`, where they are not simply small.
NUMBERS = {
    "num_experts": (3, 4, 5),
    "num_key_value_heads": (1, 2),
    "head_dim": (2, 4, 5),
    "num_capsules": (1, 2, 3, 4),
    "num_mechanisms": (1, 2, 4),
    "ffn_dim": (8, 16),
    "shared_heads": (0, 1, 2),
    "exchange_heads": (0, 1, 2),
    "exchange_head_dim": (2, 3),
    "gate_hidden_dim": (4, 8),
    "iterations": (2, 3),
    "inverse_temperature": (0.01, 1.0, 100.0),
    "balance_coef": (0.0, 0.5),
    "z_coef": (0.0, 0.5),
}
# What a test gives.
GIVEN = ("num_heads", "num_branches", "embed_dim", "kdim", "vdim", "cross_attention", "norm_eps")
# Shared heads of keys, norms, widths and biases, which all systems have.
BLOCKS = ("num_key_value_heads", "qk_norm", "head_dim", "bias")
# What draws numbers at a pass, changes the first weights alone, or has no equation of a paper.
LEFT_OUT = ("dropout", "noisy", "start", "gate_init", "dense", "causal_queries")

SIDES = ("right", "left", "within")  # of a sequence, where padding may stand


@st.composite
def any_system(draw: Any, name: str, **more: Any) -> tuple[Any, bool]:
    """A system with any options and blocks, and whether its positions are rotary.

    Options are drawn from the types of its constructor; what that refuses is drawn again.
    """
    drawn = draw(_kwargs(name, exclude=BLOCKS).filter(lambda drawn: _is_taken(name, drawn)))
    drawn |= draw(_kwargs(name, only=BLOCKS))
    width = drawn.get("head_dim") or NINE[name][1].get("head_dim", DIM // HEADS)
    rotary = width % 2 == 0 and draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 99)))
    try:
        return build(name, **drawn, **more), rotary
    except ValueError:  # options and blocks that do not go together
        reject()


@st.composite
def masks(draw: Any, rows: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
    """Masks of a call: of padding and of pairs, boolean and float, causal or not.

    Args:
        heads: 1 for masks that are the same for all heads.
    """
    given: dict[str, Any] = {"is_causal": draw(st.booleans())}
    if draw(st.booleans()):
        given["key_padding_mask"] = draw(_forms_of(draw(paddings(rows, keys))))
    shapes: list[tuple[int, ...]] = [(queries, keys), (rows, 1, queries, keys)]
    if heads > 1:
        shapes += [(rows, heads, queries, keys), (rows * heads, queries, keys)]
    shape = draw(st.sampled_from([None, *shapes]))
    if shape is not None:
        blocked = draw(_booleans(shape, one_in=3))
        given["attn_mask"] = draw(_forms_of(blocked, with_biases=True))
    return given


@st.composite
def paddings(draw: Any, rows: int, time: int, sides: tuple[str, ...] = SIDES) -> Tensor:
    """Boolean `(rows, time)`, `True` at padding, which stands on one of the sides.

    One row at least has something real; others may be padding alone.
    """
    where, row = draw(st.sampled_from(sides)), draw(st.integers(0, rows - 1))
    if where == "within":
        padding = draw(_booleans((rows, time), one_in=3))
    else:
        lengths = draw(st.lists(st.integers(0, time), min_size=rows, max_size=rows))
        padding = torch.arange(time).expand(rows, time) >= torch.tensor(lengths).unsqueeze(1)
        padding = padding.flip(1) if where == "left" else padding
    padding[row, -1 if where == "left" else 0] = False
    return padding


@st.composite
def cache_actions(draw: Any, rows: int = 3) -> list[tuple[str, Any]]:
    """What decoding does: reads positions, and reorders, selects and repeats rows between."""
    actions: list[tuple[str, Any]] = [("read", draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(1, 3))):
        change = draw(st.sampled_from(["nothing", "reorder", "select", "repeat"]))
        if change == "repeat" and rows < 4:
            actions.append(("repeat", 2))
            rows *= 2
        elif change in ("reorder", "select"):
            size = rows if change == "reorder" else draw(st.integers(1, rows))
            index = draw(st.lists(st.integers(0, rows - 1), min_size=size, max_size=size))
            actions.append((change, tuple(index)))
            rows = size
        actions.append(("read", draw(st.integers(1, 3))))
    return actions


@st.composite
def _forms_of(draw: Any, blocked: Tensor, with_biases: bool = False) -> Tensor:
    """A boolean mask, or a float one that says the same, beside biases if it may have any."""
    hides = draw(st.sampled_from([None, float("-inf"), -1e4]))
    if hides is None:
        return blocked
    biases = torch.zeros(blocked.shape, dtype=torch.float64)
    if with_biases and draw(st.booleans()):
        seed = draw(st.integers(0, 99))
        biases = torch.randn(blocked.shape, generator=torch.Generator().manual_seed(seed)).double()
    return biases.masked_fill(blocked, hides)


@st.composite
def _booleans(draw: Any, shape: tuple[int, ...], one_in: int) -> Tensor:
    """Some of them `True`; drawn by a seed, since hypothesis is slow at drawing each."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return torch.rand(shape, generator=generator) < 1 / one_in


def _is_taken(name: str, drawn: dict[str, Any]) -> bool:
    try:
        build(name, **drawn)
    except ValueError:
        return False
    return True


def _kwargs(
    name: str, *, only: tuple[str, ...] = (), exclude: tuple[str, ...] = ()
) -> st.SearchStrategy[dict[str, Any]]:
    kinds = {
        option: kind
        for option, kind in _types(NINE[name][0]).items()
        if option not in (*GIVEN, *LEFT_OUT, *exclude)
        and not option.endswith("dropout")
        and (not only or option in only)
    }
    # The loops of routing take long where each dimension is a capsule, as by default.
    required = {k for k in (*NINE[name][1], "num_capsules") if k in kinds}
    drawn = {option: _values(option, kind) for option, kind in kinds.items()}
    optional = {option: values for option, values in drawn.items() if option not in required}
    return st.fixed_dictionaries({k: drawn[k] for k in required}, optional=optional)


def _types(system: Any) -> dict[str, Any]:
    """The types of a constructor's arguments, and of those that it passes on to its bases."""
    found: dict[str, Any] = {}
    for base in reversed(system.__mro__):
        if "__init__" in vars(base) and base.__module__.startswith("headwise"):
            hints = get_type_hints(base.__init__)
            taken = inspect.signature(base.__init__).parameters.values()
            found |= {p.name: hints[p.name] for p in taken if p.kind is p.KEYWORD_ONLY}
    return found


def _values(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [part for part in get_args(kind) if part is not type(None)]
        return st.one_of(*(_values(name, part) for part in kinds))  # None is leaving it out
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if name in NUMBERS:
        return st.sampled_from(NUMBERS[name])
    if kind is int:
        return st.integers(1, 3)
    raise AssertionError(f"{name} is a {kind}: say in NUMBERS which values are to be drawn")
