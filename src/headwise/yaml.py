"""Reads and writes YAML 1.2, in which recipes and the values of options are written.

PyYAML follows YAML 1.1, where `no` is false, `010` is 8, `1e-3` a text and `2020-01-01` a date.
"""

import re
from typing import Any, ClassVar

import yaml

# Those in C, where PyYAML was built with them, are ten times as fast.
_Reader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Writer: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# What unquoted text means (YAML 1.2.2, 10.3.2), and the letters that it may begin with.
_MEANINGS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),  # of YAML 1.1, for what several mappings share
)


class _Loader(_Reader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


class _Dumper(_Writer):
    """Puts text in quotes that YAML 1.2 or 1.1 would read as something else."""


for _tag, _pattern, _initials in _MEANINGS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_initials)
        )
_Loader.add_constructor(
    "tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node))
)


def read_yaml(text: str) -> Any:
    """The value that a YAML text describes; a date is read as text.

    Raises:
        ValueError: the text is not valid YAML, or gives a key twice; the message names the line.

    >>> read_yaml("{released: 2020-01-01, language: no, learning_rate: 1e-3, length: 010}")
    {'released': '2020-01-01', 'language': 'no', 'learning_rate': 0.001, 'length': 10}
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(node, set())
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark and "\n" in text.strip() else ""
        problem = f"{where}not valid YAML: {str(error.problem or error.context)[:200]}"
    # The last two come from numbers and characters that do not exist.
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        problem = f"not valid YAML: {error}"
    finally:
        if loader is not None:
            loader.dispose()
    raise ValueError(problem)


def write_yaml(values: Any) -> str:
    """The YAML text of values, which `read_yaml` reads as they are.

    >>> write_yaml({"text": "1e-3", "number": 1e-3})
    "text: '1e-3'\\nnumber: 0.001\\n"
    """
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _check_keys(node: Any, seen: set[int]) -> None:
    """Raises `MarkedYAMLError` if a mapping inside a node has a key twice."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, seen)
        return
    keys = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in keys:
                problem = f"the key {key.value!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            keys.add(key.value)
        _check_keys(value, seen)
