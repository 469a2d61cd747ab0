"""Reads YAML 1.2, in which recipes and the values of options are written."""

from functools import cache
from typing import Any

from headwise.messages import cut


def read_yaml(text: str) -> Any:
    """Returns the value that a YAML text describes; a date is read as text.

    Args:
        text: one YAML document.

    Raises:
        ValueError: the text is not valid YAML, or gives a key twice. If it has several lines, the
            message names the line.

    >>> read_yaml("{released: 2020-01-01, language: no, learning_rate: 1e-3, length: 010}")
    {'released': '2020-01-01', 'language': 'no', 'learning_rate': 0.001, 'length': 10}
    >>> read_yaml("{steps: 5, steps: 6}")
    Traceback (most recent call last):
    ...
    ValueError: not valid YAML: found duplicate key "steps" with value "6" (original value: "5")
    """
    from ruamel.yaml import YAML, YAMLError  # imported here: models are used without it
    from ruamel.yaml.error import MarkedYAMLError

    loader = YAML(typ="safe", pure=True)
    loader.Constructor = _constructor()
    try:
        return loader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark and "\n" in text.strip() else ""
        problem = f"{where}not valid YAML: {cut(error.problem or error.context)}"
    except RecursionError:
        problem = "not valid YAML: too many lists or mappings stand in each other"
    # The last two come from numbers and characters that do not exist.
    except (YAMLError, ValueError, OverflowError) as error:
        problem = f"not valid YAML: {error}"
    raise ValueError(problem)


@cache
def _constructor() -> type:
    from ruamel.yaml.constructor import SafeConstructor

    class Constructor(SafeConstructor):
        """Leaves dates as they are written."""

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    return Constructor
