"""Reads YAML of plain values: mappings with text as keys, lists, text, numbers, true, false, null.

YAML has more, some of which surprises whoever writes a recipe, and some of which can be an attack.
Of a key that is given twice, only the last value counts; a number or a date as a key is no name; a
tag creates other objects; a few aliases of aliases stand for more values than fit into memory; and
deeply nested brackets exhaust the stack. Each of these is an error here that names the line. Dates
are read as text. So is what the older YAML 1.1 takes for a truth value (`no`, the language) or for
a number in base 60 (`12:30`); numbers and truth values are those of YAML 1.2.
"""

import re
from typing import Any

import yaml

from headwise.messages import cut, shown

# Far beyond what anybody writes by hand.
_MOST_CHARACTERS = 1_000_000
DEEPEST = 50  # levels of lists and mappings
_MOST_VALUES = 100_000  # with every alias written out
_LONGEST_NUMBER = 100  # digits
_OF_YAML = "tag:yaml.org,2002:"
# What an unquoted word may mean in YAML, but not here: it is text.
_UNKNOWN = [f"{_OF_YAML}{kind}" for kind in ("timestamp", "value", "bool", "int", "float")]
# The core schema of YAML 1.2, and `_` between digits: kind, pattern, and how a value may begin.
_CORE = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
)
_KINDS = {"int": "a number", "float": "a number", "bool": "a truth value", "null": "empty"}


def read_yaml(text: str) -> Any:
    """Returns the value that a YAML text describes.

    Args:
        text: one YAML document.

    Raises:
        ValueError: the text is not valid YAML, or has something that is not plain. If it has
            several lines, the message names the line.

    >>> read_yaml("{released: 2020-01-01, sizes: [1, 2.5]}")
    {'released': '2020-01-01', 'sizes': [1, 2.5]}
    >>> read_yaml("{language: no, learning_rate: 1e-3, shuffle: true, length: 010}")
    {'language': 'no', 'learning_rate': 0.001, 'shuffle': True, 'length': 10}
    >>> read_yaml("{steps: 5, steps: 6}")
    Traceback (most recent call last):
    ...
    ValueError: the key 'steps' is given twice, expected each key once; leave one of the two out
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"there are {len(text):,} characters, expected at most {_MOST_CHARACTERS:,}: put data "
            f"into files of their own"
        )
    try:
        return yaml.load(text, _PlainLoader)
    except yaml.MarkedYAMLError as error:
        where = _where(error.problem_mark or error.context_mark, text)
        if isinstance(error, _NotPlain):
            raise ValueError(f"{where}{error.problem}") from None
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise ValueError(f"{where}not valid YAML: {cut(problem)}") from None
    # The last two come from escapes of characters that do not exist: "\\UFFFFFFFF".
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ValueError(f"not valid YAML: {error}") from None


def _where(mark: yaml.Mark | None, text: str) -> str:
    if mark is None or "\n" not in text.strip():
        return ""
    return f"line {mark.line + 1}: "


class _NotPlain(yaml.MarkedYAMLError):
    """Valid YAML that is not plain. `at` is a node or an event."""

    def __init__(self, problem: str, at: Any) -> None:
        super().__init__(problem=problem, problem_mark=at.start_mark)


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's loader with our checks: the one in Python, whose steps can be overridden."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        # For each complete node, how many values it stands for, with every alias written out.
        self._values: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            node: Any = super().compose_node(parent, index)
            if id(node) not in self._values:
                raise _NotPlain("an alias stands within what it names; leave it out", event)
            return node
        if event.tag not in (None, "!"):
            tag = event.tag.replace(_OF_YAML, "!!")
            raise _NotPlain(
                f"the tag {shown(tag)} is given, expected a plain value; leave the tag out",
                event,
            )
        self._depth += 1
        if self._depth > DEEPEST:
            raise _NotPlain(
                f"more than {DEEPEST} lists or mappings stand in each other, expected fewer; look "
                f"for brackets that are not closed",
                event,
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode):
            _check_text(node)
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node)
        self._count(node)
        return node

    def _count(self, node: Any) -> None:
        inner: list[Any] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [value for _, value in node.value]
        count = 1 + sum(self._values[id(value)] for value in inner)
        if count > _MOST_VALUES:
            raise _NotPlain(
                f"there are more than {_MOST_VALUES:,} values, expected fewer: put data into files "
                f"of their own, and write out what aliases repeat",
                node,
            )
        self._values[id(node)] = count

    def construct_number(self, node: Any) -> Any:
        digits = node.value
        try:
            if len(digits) <= _LONGEST_NUMBER:
                if node.tag.endswith(":float"):
                    return self.construct_yaml_float(node)
                return int(digits, 0 if digits.startswith(("0o", "0x")) else 10)
            problem = f"it has {len(digits):,} digits, expected at most {_LONGEST_NUMBER}"
        except ValueError:
            problem = "it cannot be read; put it in quotes if it is meant as text"
        raise _NotPlain(f"{shown(digits)} is no number of a recipe: {problem}", node)


def _check_text(node: yaml.ScalarNode) -> None:
    odd = next((c for c in node.value if c == "\0" or "\ud800" <= c <= "\udfff"), None)
    if odd is not None:
        raise _NotPlain(f"a text has the character {odd!r}, which no file or name has", node)


def _check_keys(node: yaml.MappingNode) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        name = key.value
        kind = key.tag.rpartition(":")[2]
        if not isinstance(key, yaml.ScalarNode):
            raise _NotPlain("a key is a list or a mapping, expected text", key)
        if kind not in ("str", "merge"):
            raise _NotPlain(
                f"the key {cut(name) or 'null'} is {_KINDS[kind]}, expected text; put it in quotes",
                key,
            )
        line = key.start_mark.line + 1
        if name in lines:
            both = f" (lines {lines[name]} and {line})" if line != lines[name] else ""
            raise _NotPlain(
                f"the key {shown(name)} is given twice{both}, expected each key once; leave one of "
                f"the two out",
                key,
            )
        lines[name] = line


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _UNKNOWN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in _CORE:
    _PlainLoader.add_implicit_resolver(
        f"{_OF_YAML}{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )
for _kind in ("int", "float"):
    _PlainLoader.add_constructor(f"{_OF_YAML}{_kind}", _PlainLoader.construct_number)
