"""Recipes that somebody has spoilt: strategies that make them from those that headwise ships."""

import datetime
from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import strategies as st

from headwise.recipes import shipped_recipes

SHIPPED = dict(sorted(shipped_recipes().items()))
Path = tuple[Any, ...]

# Each has made some program fall: too large, too long, of another type, or read as something else.
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, "", " ", "null", "yes", "0x10", "1e3", "~", "-", ".", "..", "a.b", "a:b"),
    *(0, -1, 1, 2, 3, 7, 10**9, 10**12, 10**30, -(2**63), 2**64),
    *(0.0, 0.5, -0.5, 1.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")),
    *(datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 0), b"\xff\x00", {1, 2}),
    *([], {}, [[]], [{}], {"a": 1}, {1: 2}, {None: None}, [0] * 50, {"system": {"a": 1}}),
    *(
        "x" * 10_000,
        "é\u0301\u202e\U0001f984",
        "\x00",
        "line\nline",
        "..:x",
        "os:path",
        "no.such:Name",
    ),
    *("standard", "mae", "moa", "tim", "agreement", "weighted", "gated", "moh", "all"),
    *("../../etc/passwd", "/", "/dev/null", "/proc/self/mem", "http://localhost:1/x", "~/x"),
)
NUMBERS = st.one_of(
    st.integers(), st.integers(-3, 100), st.floats(), st.floats(0, 1), st.integers(10**5, 10**14)
)
SCALARS = st.one_of(st.sampled_from(HOSTILE), NUMBERS, st.text(max_size=20))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of everything inside a document."""
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def is_in_list(document: Any, path: Path) -> bool:
    return isinstance(at(document, path[:-1]), list)


ALL_KEYS = sorted(
    {
        key
        for text in SHIPPED.values()
        for path in places(yaml.safe_load(text))
        for key in path
        if isinstance(key, str)
    }
)


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """A shipped recipe in which one to four things were changed."""
    document = yaml.safe_load(SHIPPED[draw(st.sampled_from(list(SHIPPED)))])
    for _ in range(draw(st.integers(1, 4))):
        known = list(places(document))
        if not known:
            break
        path = draw(st.sampled_from(known))
        parent, key = at(document, path[:-1]), path[-1]
        change = draw(
            st.sampled_from(["value", "value", "delete", "rename", "move", "wrap", "add"])
        )
        if change == "value":
            parent[key] = draw(VALUES)
        elif change == "delete":
            del parent[key]
        elif change == "move":
            parent[key] = yaml.safe_load(yaml.safe_dump(at(document, draw(st.sampled_from(known)))))
        elif change == "wrap":
            parent[key] = draw(
                st.sampled_from([[parent[key]], {"a": parent[key]}, str(parent[key])])
            )
        elif is_in_list(document, path):
            parent.insert(key, draw(VALUES))
        else:
            name = draw(st.sampled_from(ALL_KEYS) | SCALARS.filter(_is_key))
            parent[name] = parent.pop(key) if change == "rename" else draw(VALUES)
    return document


def _is_key(value: Any) -> bool:
    return value.__hash__ is not None and not isinstance(value, (list, dict, set))
