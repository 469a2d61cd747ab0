"""Reads YAML 1.2, in which recipes and the values of options are written."""

from typing import Any


def read_yaml(text: str) -> Any:
    """The value that a YAML text describes; a date is read as text.

    Raises:
        ValueError: the text is not valid YAML, or gives a key twice; the message names the line.

    >>> read_yaml("{released: 2020-01-01, language: no, learning_rate: 1e-3, length: 010}")
    {'released': '2020-01-01', 'language': 'no', 'learning_rate': 0.001, 'length': 10}
    """
    from ruamel.yaml import YAML, YAMLError  # imported here: models are used without it
    from ruamel.yaml.constructor import SafeConstructor
    from ruamel.yaml.error import MarkedYAMLError

    class Constructor(SafeConstructor):
        """Leaves dates as they are written."""

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    loader = YAML(typ="safe", pure=True)
    loader.Constructor = Constructor
    try:
        return loader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark and "\n" in text.strip() else ""
        problem = f"{where}not valid YAML: {str(error.problem or error.context)[:200]}"
    # The last two come from numbers and characters that do not exist.
    except (YAMLError, RecursionError, ValueError, OverflowError) as error:
        problem = f"not valid YAML: {error}"
    raise ValueError(problem)
