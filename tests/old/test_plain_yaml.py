"""YAML 1.2 with dates as text: what is read, and what is refused with the line that it is in."""

import pytest
import yaml

from headwise.plain_yaml import read_yaml
from headwise.recipes import shipped_recipes


def test_the_shipped_recipes_mean_what_they_mean_to_others():
    for text in shipped_recipes().values():
        assert read_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("{a: &d {x: 1, y: 2}, c: {<<: *d, y: 3}}", {"a": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3}}),
        ("[2020-01-01, 2001-12-14 21:59:43]", ["2020-01-01", "2001-12-14 21:59:43"]),
        ("[no, off, 12:30, 010, 0o17, 1e-3, TRUE]", ["no", "off", "12:30", 10, 15, 0.001, True]),
    ],
)
def test_what_is_read(text, value):
    assert read_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", 'line 3: not valid YAML: found duplicate key "a" with value "3"'),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor for the tag"),
        ("a: 1\nb: [1, 2", "line 2: not valid YAML: expected ',' or ']'"),
        ("a: *" + "nothing" * 100, "not valid YAML: found undefined alias 'nothing"),
        ('"\\UFFFFFFFF"', "not valid YAML: "),
        ("9" * 5000, "not valid YAML: "),
        ("[" * 5000, "too many lists or mappings stand in each other"),
    ],
    ids=range(7),
)
def test_what_is_refused(text, said):
    with pytest.raises(ValueError) as caught:
        read_yaml(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500
