"""`data.train_fraction`: a sample of the training part, nested as it grows, the rest unchanged."""

from itertools import pairwise

import pytest
import tiny_tasks
from rich.console import Console

from headwise.data.division import sample
from headwise.recipes import RecipeError, load_recipe
from headwise.recipes.catalogue import task_class
from headwise.runs.preparing import prepare_task

FRACTIONS = (0.05, 0.1, 0.2, 0.5, 1.0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The data of a task with a share of its training part."""
    folders = {}

    def prepare(task, fraction):
        if task not in folders:
            folders[task] = tiny_tasks.write_recipe(task, tmp_path_factory.mktemp(task))
        recipe = load_recipe(str(folders[task]), [f"data.train_fraction={fraction}"]).recipe
        return task_class(task).prepare(recipe)

    return prepare


def contents(task, data):
    """The items of the training part, as they were read."""
    if task == "images":
        return {image.tobytes() for image in data.images.train.pixels}
    if task == "speech-enhancement":
        return {recording.name for recording in data.train.clean}
    if task == "translation":
        return set(data.corpus.train)
    if task in ("classification", "probing"):
        return {tuple(example) for example in data.corpus.train}
    return {line for document in data.corpus.train for line in document if line}


@pytest.mark.parametrize("task", tiny_tasks.RECIPES)
def test_a_larger_share_has_the_items_of_a_smaller_one(prepared, task):
    found = {fraction: prepared(task, fraction) for fraction in FRACTIONS}
    items = [contents(task, found[fraction]) for fraction in FRACTIONS]
    for smaller, larger in pairwise(items):
        assert 0 < len(smaller) <= len(larger) and smaller <= larger
    assert len(items[0]) < len(items[-1])
    assert "sample" in found[0.5].notes and "sample" not in found[1.0].notes
    digests = {found[fraction].digest() for fraction in (0.05, 0.5, 1.0)}
    assert len(digests) == 3  # they are different data, which no run confuses
    # Where scores are of tokens, the encoding counts, which is learned from the sample.
    if task not in ("language-modelling", "masked-language-modelling", "images"):
        for part in ("validation", "test"):
            assert len({found[fraction].digest_of(part) for fraction in (0.05, 1.0)}) == 1


def test_the_share_is_that_of_the_different_keys():
    letters = [*"abcdefghijklmnopqrstuvwxyz", *"aaaa"]
    kept, note = sample(letters, str, 0.5, "letters")
    assert len(set(kept)) == 13
    assert kept == [letter for letter in letters if letter in set(kept)]  # in their order
    assert note == {"sample": f"{len(kept)} of 30 training letters, chosen by a hash of each"}
    assert sample(letters, str, 1.0, "letters") == (letters, {})
    assert len(sample("ab", str, 0.01, "letters")[0]) == 1


def test_the_halves_of_pairs_have_no_share_of_their_own(tmp_path):
    with pytest.raises(RecipeError, match=r"left.train_fraction is given, .* data.train_fraction"):
        load_recipe("images-pair", ["data.left={corpus: digits, train_fraction: 0.5}"])
    recipe = load_recipe("images-pair", ["data.train_fraction=0.01"]).recipe
    task = prepare_task(recipe, tmp_path / "run", Console(quiet=True))
    assert len(task.train) < 100 < len(task.test)
