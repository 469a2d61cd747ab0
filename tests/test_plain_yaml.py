"""YAML of plain values: what is read, and what is refused with the line that it is in."""

import time

import pytest
import yaml

from headwise.plain_yaml import read_yaml
from headwise.recipes import shipped_recipes

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED_LAUGHS = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_shipped_recipes_mean_what_they_mean_to_others(name):
    text = shipped_recipes()[name]
    assert read_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("[1, 2.5, -0.5, 0x10, true, ~, word, 'it''s', \"\\u00e9\"]", None),
        ("{a: &d {x: 1, y: 2}, b: *d, c: {<<: *d, y: 3}}", None),
        ("{nested: [{deep: [1, {deeper: {}}]}]}", None),
        ("first: |\n  two\n  lines\nsecond: >\n  one\n  line\n", None),
        ("{released: 2020-01-01, at: 2001-12-14 21:59:43, 2020-01-01: 3, no_date: 2020-13-45}",
         {"released": "2020-01-01", "at": "2001-12-14 21:59:43", "2020-01-01": 3,
          "no_date": "2020-13-45"}),
        ("{no: off, at: 12:30, octal: 010, whole: [-1, 1_000, 0o17], 'FALSE': [True, TRUE, -.5e3]}",
         {"no": "off", "at": "12:30", "octal": 10, "whole": [-1, 1000, 15],
          "FALSE": [True, True, -500.0]}),
    ],
)  # fmt: skip
def test_plain_values_are_read(text, value):
    assert read_yaml(text) == (yaml.safe_load(text) if value is None else value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is given twice (lines 1 and 3), expected each"),
        ("x:\n  {a: 1, a: 2}", "line 2: the key 'a' is given twice, expected each key once"),
        ("{a: 1, a: 2}", "the key 'a' is given twice, expected each key once; leave one of the"),
        ("b: 1\n2017: 2", "line 2: the key 2017 is a number, expected text; put it in quotes"),
        ("true: 2", "the key true is a truth value, expected text; put it in quotes"),
        ("1.5: 2", "the key 1.5 is a number, expected text"),
        ("~: 2", "the key ~ is empty, expected text"),
        ("{[a]: 2}", "a key is a list or a mapping, expected text"),
        ("a: !!binary aGk=", "the tag '!!binary' is given, expected a plain value; leave the tag"),
        ("!!binary aGk=: 2", "the tag '!!binary' is given"),
        ("a: !!python/object/apply:os.getcwd []", "'!!python/object/apply:os.getcwd' is given"),
        ("a: !!timestamp 2020-01-01", "the tag '!!timestamp' is given"),
        ("a: 1\nb: [1, 2", "line 2: not valid YAML: while parsing a flow sequence, expected ','"),
        ("a: b: c", "not valid YAML: mapping values are not allowed here"),
        ("--- a\n--- b", "line 2: not valid YAML: expected a single document"),
        ("a: *" + "nothing" * 100, "not valid YAML: found undefined alias 'nothing"),
        ("\0", "not valid YAML: unacceptable character"),
        ('"\\0"', "a text has the character '\\x00', which no file or name has"),
        ('"\\uD800"', "a text has the character '\\ud800'"),
        ('"\\UFFFFFFFF"', "not valid YAML: "),
        ("x: 1__0", "'1__0' is no number of a recipe: it cannot be read; put it in quotes"),
        ("9" * 5000, "it has 5,000 digits, expected at most 100"),
        ("&a [*a]", "an alias stands within what it names; leave it out"),
        ("&a {b: [*a]}", "an alias stands within what it names"),
        ("[" * 5000, "more than 50 lists or mappings stand in each other"),
        ("[" * 5000 + "]" * 5000, "look for brackets that are not closed"),
        ("{a: " * 5000, "more than 50 lists or mappings stand in each other"),
        ("- " * 5000, "more than 50 lists or mappings stand in each other"),
        (LAUGHS, "line 5: there are more than 100,000 values, expected fewer: put data into"),
        (MERGED_LAUGHS, "line 6: there are more than 100,000 values, expected fewer"),
        ("x" * 1_000_001, "there are 1,000,001 characters, expected at most 1,000,000"),
    ],
    ids=range(31),
)
def test_what_is_not_plain_is_refused(text, said):
    start = time.monotonic()
    with pytest.raises(ValueError) as caught:
        read_yaml(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500
    assert time.monotonic() - start < 20  # and not minutes, or until memory is full
