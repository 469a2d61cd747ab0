"""Whatever a recipe says, it is a valid recipe or an error that names the file, and soon."""

import time
from pathlib import Path

import pytest
import yaml
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from mutations import ALL_KEYS, SHIPPED, VALUES, documents, places

from headwise.recipes import RecipeError, load_recipe

# Generous bounds: what is to be found is a message of megabytes, or minutes.
LONGEST_LINE, LONGEST_MESSAGE = 1_000, 20_000
SECONDS = 20.0  # of this process, however busy the machine is


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    for text in SHIPPED.values():  # what is imported at the first use is not counted
        yaml.safe_load(text)
    load_recipe("interface-strings")
    return tmp_path_factory.mktemp("recipes")


def check(name: str, changes: list[str], mentioned: str) -> None:
    start = time.process_time()
    try:
        file = load_recipe(name, changes)
    except RecipeError as error:
        message = str(error)
        assert mentioned in message
        assert len(message) <= LONGEST_MESSAGE
        assert max(map(len, message.splitlines())) <= LONGEST_LINE
    else:
        # What is valid stays so, and means the same, when it is written with all its defaults.
        again = Path(mentioned).with_name("again.yaml")
        again.write_text(file.yaml(), encoding="utf-8")
        assert load_recipe(str(again)).recipe == file.recipe
    assert time.process_time() - start < SECONDS


@given(st.data())
@examples(suite=40, long=150)
def test_documents_with_other_keys_and_values(folder, data):
    path = folder / "spoilt.yaml"
    text = yaml.safe_dump(data.draw(documents()), allow_unicode=True, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    check(str(path), [], str(path))


@given(st.data())
@examples(suite=25, long=100)
def test_bytes(folder, data):
    text = SHIPPED[data.draw(st.sampled_from(list(SHIPPED)))].encode()
    place = data.draw(st.integers(0, len(text)))
    path = folder / "spoilt.yaml"
    path.write_bytes(text[:place] + data.draw(st.binary(max_size=8)) + text[place:])
    check(str(path), [], str(path))


@given(st.data())
@examples(suite=25, long=100)
def test_changes_of_the_command_line(folder, data):
    name = data.draw(st.sampled_from(list(SHIPPED)))
    known = [".".join(map(str, path)) for path in places(yaml.safe_load(SHIPPED[name]))]
    keys = st.sampled_from(known) | st.sampled_from(ALL_KEYS) | st.text(max_size=12)
    values = VALUES.map(lambda value: yaml.safe_dump(value, default_flow_style=True).strip())
    changes = data.draw(
        st.lists(
            st.builds("{}={}".format, keys, values | st.text(max_size=12)) | st.text(max_size=12),
            min_size=1,
            max_size=3,
        )
    )
    path = folder / "as_shipped.yaml"
    path.write_text(SHIPPED[name], encoding="utf-8")
    try:
        load_recipe(str(path), changes)
    except RecipeError as error:
        message = str(error)
        assert "--set" in message or str(path) in message
        assert len(message) <= LONGEST_MESSAGE
