"""What the settings of all data have in common: shares, splits and further test sets."""

import gzip
import hashlib

import image_files
import numerals
import pytest
import sounds
import tiny_tasks
from pydantic import TypeAdapter, ValidationError

from headwise.data.images.settings import ImageSettings
from headwise.data.labelled.settings import ProbingSettings
from headwise.data.pairs.settings import ParallelHub, ParallelSettings
from headwise.data.running.settings import TextSettings
from headwise.data.settings import DividedSettings, HubSettings, given_parts
from headwise.data.sources import CorpusError
from headwise.recipes import RecipeError, load_recipe
from headwise.recipes.catalogue import task_class


def settings(kind, **data):
    return TypeAdapter(kind).validate_python(data)


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def pair(folder, name, pairs):
    """Writes two files; returns the settings that name them."""
    sides = zip(*pairs, strict=True)
    return {
        side: write(folder / f"{name}.{side}", lines)
        for side, lines in zip(("source", "target"), sides, strict=True)
    }


# Settings


def test_what_a_test_set_does_not_say_is_as_in_its_data():
    hub = ParallelHub(
        name="captions",
        config="small",
        source_field="en",
        target_field="de",
        tests={
            "plain": "test2017",
            "columns": {"split": "b", "target_field": "fr"},
            "other": {"name": "news"},
            "files": {"source": "a", "target": "b"},
        },
    )
    found = {name: test.model_dump(exclude_none=True) for name, test in hub.tests.items()}
    own = {"corpus": "hub", "name": "captions", "config": "small", "source_field": "en"}
    assert found["plain"] == {**own, "split": "test2017", "target_field": "de"}
    assert found["columns"] == {**own, "split": "b", "target_field": "fr"}
    # A configuration belongs to its dataset.
    assert found["other"] == {
        "corpus": "hub",
        "name": "news",
        "split": "test",
        "source_field": "en",
        "target_field": "de",
    }
    assert found["files"]["corpus"] == "files"
    assert settings(ParallelSettings, **hub.model_dump()) == hub


def test_a_plain_value_is_the_file_of_a_test_set():
    text = settings(
        TextSettings, corpus="files", train="a", documents="title", tests={"b": "b.txt"}
    )
    assert text.tests["b"].model_dump(mode="json") == {
        "corpus": "files",
        "files": ["b.txt"],
        "documents": "title",
    }
    idx = settings(
        ImageSettings,
        corpus="idx",
        train="a",
        tests={"b": "b", "c": {"corpus": "folder", "path": "c"}},
    )
    assert [test.corpus for test in idx.tests.values()] == ["idx", "folder"]
    assert settings(ImageSettings, corpus="digits", tests={"b": "b"}).tests["b"].corpus == "folder"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.tests.a.sorce=b", "no key 'data.tests.a.sorce'; did you mean 'source'?"),
        ("data.tests.a.source=b", "data.tests.a.target is missing"),
        ("data.tests.a=b.txt", "data.tests.a is 'b.txt', expected keys with values"),
        ("data.tests.a.corpus=flies", "data.tests.a.corpus is 'flies', expected one of files, hub"),
        ("data.tests.test.source=b", "tests.test has the name of a part"),
        (
            "data={corpus: interface-strings, tests: {a: {corpus: interface-strings}}}",
            "data.tests.a.corpus is 'interface-strings', expected one of files, hub",
        ),
    ],
)
def test_wrong_settings_name_the_key(change, message):
    with pytest.raises(RecipeError) as error:
        load_recipe("interface-strings", [change])
    assert message in str(error.value)


def test_where_further_test_sets_make_no_sense_they_are_refused():
    digits = {"corpus": "digits", "tests": {"a": "b"}}
    with pytest.raises(ValidationError, match=r"left\.tests is given, expected none"):
        settings(ImageSettings, corpus="pair", left=digits)
    text = {"corpus": "pydoc-topics", "tests": {"a": "b"}}
    with pytest.raises(ValidationError, match=r"texts\.tests is given, expected none"):
        settings(ProbingSettings, corpus="generated", texts=text)


# Data


def translation(folder):
    return pair(folder, "further", numerals.pairs(12, seed=5))


def text(folder):
    return write(folder / "further.txt", tiny_tasks.lines(20, seed=5))


def labelled(folder):
    return write(folder / "further.tsv", ["sentence\tlabel", "one two\tshort", "ten nine\tshort"])


def images(folder):
    return str(image_files.write_folder(folder / "further", image_files.noise(5)))


def speech(folder):
    sounds.write_voicebank(folder, "further", count=2, rate=8_000)
    return {side: str(folder / f"{side}_further_wav") for side in ("noisy", "clean")}


FURTHER = {
    "translation": (translation, 12),
    "language-modelling": (text, None),
    "masked-language-modelling": (text, None),
    "classification": (labelled, 2),
    "images": (images, 5),
    "speech-enhancement": (speech, 2),
}


@pytest.mark.parametrize("task", FURTHER)
def test_every_task_reads_them_and_trains_as_without(task, tmp_path):
    write_test, size = FURTHER[task]
    path = tiny_tasks.write_recipe(task, tmp_path)
    recipe = load_recipe(str(path)).recipe
    data = {**recipe.data.model_dump(), "tests": {"further": write_test(tmp_path)}}
    kind = task_class(task)
    plain = kind.prepare(recipe)
    made = kind.prepare(type(recipe).model_validate({**recipe.model_dump(), "data": data}))
    assert size in (None, len(made.part("further")))
    assert plain.tests == {} and list(made.tests) == ["further"]
    assert made.digest() == plain.digest()
    assert made.digest_of("test") == plain.digest_of("test") != made.digest_of("further")
    assert "SHA-256" in made.notes["test further"]
    assert {label for label in made.notes if label not in plain.notes} == {"test further"}


def corpus_of(folder, **tests):
    data = {"corpus": "files", "train": pair(folder, "train", numerals.pairs(50)), "tests": tests}
    recipe = {"task": "translation", "data": data, "training": {"max_steps": 1}}
    kind = task_class("translation")
    return kind.prepare(kind.recipe_class.model_validate(recipe)).corpus


def test_files_are_named_with_the_hashes_that_can_be_checked(tmp_path):
    source = tmp_path / "a.en.gz"
    with gzip.open(source, "wt", encoding="utf-8") as file:
        file.write("new\none\n")
    target = write(tmp_path / "a.fr", ["neuf", "un"])
    noted = corpus_of(tmp_path, a={"source": str(source), "target": target}).notes["test a"]
    digests = [
        hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in (source, tmp_path / "a.fr")
    ]
    assert f"; a.en.gz (SHA-256 {digests[0]}), a.fr (SHA-256 {digests[1]}); " in noted


def test_leaks_are_counted_and_never_dropped(tmp_path):
    plain = corpus_of(tmp_path)
    known, new = plain.train[0], ("never seen", "jamais vu")
    further = pair(tmp_path, "further", [known, new, new])
    corpus = corpus_of(tmp_path, further=further)
    assert corpus.tests["further"] == [known, new, new]
    noted = corpus.notes["test further"]
    assert noted.startswith("3 pairs (1 repeated, 1 whose source is also in an earlier part); ")
    assert corpus.train == plain.train


def test_a_test_set_without_items_is_an_error(tmp_path):
    empty = pair(tmp_path, "empty", [("", "b"), ("a", " ")])
    with pytest.raises(CorpusError, match=r"^data\.tests\.mine: there are no pairs \(2 read"):
        corpus_of(tmp_path, mine=empty)


# Parts


def test_a_share_is_divided_off_for_parts_that_are_not_given():
    settings = DividedSettings(validation_fraction=0.2, test_fraction=0.3)
    assert settings.fractions() == (0.2, 0.3)
    assert settings.fractions({"train": 1, "test": 2}) == (0.2, 0.0)
    assert settings.fractions(["validation"]) == (0.0, 0.3)


def test_splits_are_those_that_are_named():
    settings = HubSettings(name="owner/data", config="en", test_split=None)
    assert given_parts(settings) == {"train": "train", "validation": "validation"}
    assert settings.origin == "dataset owner/data en"
