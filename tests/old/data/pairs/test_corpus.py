"""Corpora: settings, cleaning, division into parts, and the counts of all that."""

import json

import datasets
import pytest
from pydantic import TypeAdapter, ValidationError

from headwise.data.division import fixed_parts_of, hashes
from headwise.data.pairs.corpus import Pair, load_parallel_corpus
from headwise.data.pairs.settings import (
    InterfaceStrings,
    ParallelFiles,
    ParallelHub,
    ParallelSettings,
)
from headwise.data.sources import CorpusError

PARTS = ("train", "validation", "test")


@pytest.fixture
def write(tmp_path):
    """Write pairs to two files; gives the settings for them."""

    def write_pairs(name, pairs):
        paths = {}
        for i, side in enumerate(("source", "target")):
            paths[side] = tmp_path / f"{name}.{side}"
            paths[side].write_text("".join(f"{pair[i]}\n" for pair in pairs), encoding="utf-8")
        return paths

    return write_pairs


def counted(corpus):
    """What the notes say of each part before they say where it comes from."""
    return [corpus.notes[part].split("; ")[0] for part in PARTS]


def part_of(source):
    return PARTS[fixed_parts_of(hashes([source]), 0.1, 0.1)[0]]


def sentences(number, word="word"):
    return [(f"{word} {i}", f"mot {i}") for i in range(number)]


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"corpus": "interface-strings", "langauge": "fr"}, "langauge"),
        ({"corpus": "interface-strings", "language": "it"}, "language"),
        ({"corpus": "files", "train": {"source": "a", "traget": "b"}}, "traget"),
        ({"corpus": "files", "train": {"source": "a", "target": "b"}, "test_fraction": 0.5}, "0.5"),
        ({"corpus": "hub", "name": "x", "source_field": "en"}, "target_field"),
        ({"corpus": "hup"}, "'interface-strings', 'files', 'hub'"),
        ({"corpus": "interface-strings", "max_ratio": 0.5}, "max_ratio"),
    ],
)
def test_wrong_settings_are_errors_that_name_the_key(settings, where):
    with pytest.raises(ValidationError, match=where):
        TypeAdapter(ParallelSettings).validate_python(settings)


# --- division ---------------------------------------------------------------------------------


def test_a_missing_part_is_divided_off_and_shares_no_source(write):
    repeated = [(f"word {i % 150}", f"mot {i}") for i in range(600)]
    corpus = load_parallel_corpus(ParallelFiles(train=write("train", repeated)))
    sources = [{pair.source for pair in getattr(corpus, part)} for part in PARTS]
    assert all(sources)
    assert sum(map(len, sources)) == len(set.union(*sources)) == 150
    assert sum(len(getattr(corpus, part)) for part in PARTS) == 600
    assert not any("earlier part" in corpus.notes[part] for part in PARTS)


def test_an_interface_string_stays_in_its_part_whatever_else_there_is(monkeypatch):
    def release(number):
        monkeypatch.setattr(
            "headwise.data.pairs.corpus.read_interface_strings",
            lambda language: (sentences(number), "release"),
        )
        monkeypatch.setattr(
            "headwise.data.pairs.corpus.language_pack", lambda language: f"{number}"
        )
        return load_parallel_corpus(InterfaceStrings())

    small, large = release(100), release(500)
    for part in PARTS:
        assert set(getattr(small, part)) <= set(getattr(large, part))
        assert all(part_of(pair.source) == part for pair in getattr(large, part))


@pytest.mark.parametrize("given", ["validation", "test"])
def test_a_given_part_is_not_divided_off_as_well(write, given):
    settings = {"train": write("train", sentences(200)), given: write(given, [("a", "b")])}
    corpus = load_parallel_corpus(ParallelFiles(**settings))
    divided = "test" if given == "validation" else "validation"
    assert getattr(corpus, given) == [("a", "b")]
    assert 5 < len(getattr(corpus, divided)) < 40
    assert len(corpus.train) + len(getattr(corpus, divided)) == 200


# --- cleaning and counting --------------------------------------------------------------------


def given_parts(write, train, validation=(("v", "w"),), test=(("t", "u"),), **settings):
    return ParallelFiles(
        train=write("train", train),
        validation=write("validation", validation),
        test=write("test", test),
        **settings,
    )


def test_empty_sides_are_skipped_and_counted_in_every_part(write):
    corpus = load_parallel_corpus(
        given_parts(
            write,
            train=[("a", "b"), ("", "b"), ("a", " \t "), ("", "")],
            test=[(" t ", "u"), ("x", "")],
        )
    )
    assert corpus.train == [Pair("a", "b")]
    assert corpus.test == [Pair("t", "u")]
    assert corpus.notes["corpus"] == "text files train.source, train.target"
    assert corpus.notes["train"].startswith("1 pairs (3 with an empty side skipped); train.source")
    assert corpus.notes["test"].startswith("1 pairs (1 with an empty side skipped); test.source")


def test_line_breaks_of_other_kinds_become_spaces(write):
    corpus = load_parallel_corpus(
        given_parts(write, train=[("one\u2028two", "eins\x0b zwei"), ("a", "b")])
    )
    assert corpus.train[0] == ("one two", "eins zwei")


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, ["4/4", "4/6", "6/4", "4/7", "8/8"]),
        ({"max_length": 7}, ["4/4", "4/6", "6/4", "4/7"]),
        ({"max_ratio": 1.5}, ["4/4", "4/6", "6/4", "8/8"]),
        ({"max_length": 7, "max_ratio": 1.5}, ["4/4", "4/6", "6/4"]),
    ],
)
def test_length_filters_touch_training_pairs_only(write, limits, kept):
    def pair(lengths):
        source, target = map(int, lengths.split("/"))
        return " ".join([lengths] + ["x"] * (source - 1)), " ".join(["y"] * target)

    pairs = [pair(lengths) for lengths in ("4/4", "4/6", "6/4", "4/7", "8/8")]
    test = [("t " * 100, "u")]
    corpus = load_parallel_corpus(given_parts(write, train=pairs, test=test, **limits))
    assert [source.split()[0] for source, _ in corpus.train] == kept
    left_out = f" ({5 - len(kept)} too long or too unequal left out)" if len(kept) < 5 else ""
    assert counted(corpus)[0] == f"{len(kept)} pairs{left_out}"
    assert len(corpus.test) == 1


def test_filters_apply_to_what_is_divided_off(write):
    train = sentences(100) + sentences(100, word="far too many words")
    corpus = load_parallel_corpus(ParallelFiles(train=write("train", train), max_length=3))
    assert "(100 too long or too unequal left out)" in counted(corpus)[0]
    held_out = [*corpus.validation, *corpus.test]
    assert held_out and all(len(pair.source.split()) == 2 for pair in held_out)


def test_repetitions_and_leaks_are_counted_and_kept(write):
    settings = given_parts(
        write,
        train=[("a", "b"), ("a", "b"), ("a", "c"), ("d", "e")],
        validation=[("d", "other"), ("v", "w"), ("v", "w")],
        test=[("a", "b"), ("v", "w"), ("t", "u")],
    )
    corpus = load_parallel_corpus(settings)
    assert [len(getattr(corpus, part)) for part in PARTS] == [4, 3, 3]
    assert counted(corpus) == [
        "4 pairs (1 repeated)",
        "3 pairs (1 repeated, 1 whose source is also in an earlier part)",
        "3 pairs (2 whose source is also in an earlier part)",
    ]


def test_the_digest_is_that_of_the_parts_too(write):
    """One pair stands at the end of the training part, or at the beginning of the next."""
    pairs, digests = sentences(20), set()
    for first in (9, 10):
        parts = {"train": pairs[:first], "validation": pairs[first:15], "test": pairs[15:]}
        files = ParallelFiles(**{name: write(name, rows) for name, rows in parts.items()})
        digests.add(load_parallel_corpus(files).digest)
    assert len(digests) == 2


def test_drop_leaks_takes_them_out_of_training_and_nowhere_else(write):
    settings = given_parts(
        write,
        train=[("a", "b"), ("a", "c"), ("d", "e"), ("f", "g")],
        validation=[("d", "other"), ("v", "w")],
        test=[("a", "b"), ("v", "w")],
        drop_leaks=True,
    )
    corpus = load_parallel_corpus(settings)
    assert corpus.train == [("f", "g")]
    assert counted(corpus) == [
        "1 pairs (3 of the held-out parts left out)",
        "2 pairs",
        "2 pairs (1 whose source is also in an earlier part)",  # test in validation
    ]


def test_an_error_says_that_drop_leaks_has_taken_out_all_pairs(write):
    parts = {part: [("a", "b")] for part in ("train", "validation", "test")}
    with pytest.raises(CorpusError, match=r"train 0 of 1 read.*\. data\.drop_leaks leaves out"):
        load_parallel_corpus(given_parts(write, **parts, drop_leaks=True))


def test_every_pair_read_is_accounted_for(write):
    train = [*sentences(300), ("", "x"), ("long " * 9, "y"), ("word 1", "mot 1"), ("t", "u")]
    settings = ParallelFiles(
        train=write("train", train),
        test=write("test", [("t", "u"), ("", "")]),
        max_length=8,
        drop_leaks=True,
    )
    corpus = load_parallel_corpus(settings)
    divided_off = len(corpus.validation)
    assert counted(corpus) == [
        f"{301 - divided_off} pairs (1 with an empty side skipped, 1 too long or too unequal left "
        f"out, 1 of the held-out parts left out, 1 repeated)",
        f"{divided_off} pairs",
        "1 pairs (1 with an empty side skipped)",
    ]


@pytest.mark.parametrize(
    ("sources", "counts"),
    [
        ([], "train 0 of 0 read, validation 0 of 0 read, test 0 of 0 read"),
        (["Undo"], "train 0 of 0 read, validation 0 of 0 read, test 1 of 1 read"),
        (["Undo", "Help"], "train 0 of 0 read, validation 1 of 1 read, test 1 of 1 read"),
        (["Undo", ""], "train 0 of 1 read, validation 0 of 0 read, test 1 of 1 read"),
    ],
)
def test_too_little_data_names_the_empty_part(write, sources, counts):
    with pytest.raises(CorpusError, match=rf"no pairs for the train part \({counts}\)"):
        pairs = [(source, "x") for source in sources]
        load_parallel_corpus(ParallelFiles(train=write("train", pairs)))


# --- the kinds of corpora ---------------------------------------------------------------------


def test_interface_strings_divide_about_eight_to_one_to_one():
    corpus = load_parallel_corpus(InterfaceStrings())
    sizes = [len(getattr(corpus, part)) for part in PARTS]
    assert sizes[0] / sum(sizes) == pytest.approx(0.8, abs=0.03)
    assert sizes[2] / sum(sizes) == pytest.approx(0.1, abs=0.02)
    assert corpus.target_language == "fr"
    assert "earlier part" not in corpus.notes["test"]
    assert corpus.notes["corpus"].startswith("jupyterlab-language-pack-fr-FR ")


def test_a_dataset_with_and_without_a_validation_split(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    for split, number in {"train": 100, "test": 3}.items():
        with (folder / f"{split}.jsonl").open("w") as file:
            for en, fr in sentences(number, word=split):
                file.write(json.dumps({"translation": {"en": en, "fr": fr}}) + "\n")
    settings = {
        "name": str(folder),
        "source_field": "translation.en",
        "target_field": "translation.fr",
        "target_language": "fr",
    }
    corpus = load_parallel_corpus(ParallelHub(validation_split=None, **settings))
    assert len(corpus.test) == 3 and len(corpus.train) + len(corpus.validation) == 100
    assert corpus.validation and corpus.target_language == "fr"
    assert corpus.notes["corpus"] == f"dataset {folder}"
    with pytest.raises(CorpusError, match="'validation'"):
        load_parallel_corpus(ParallelHub(**settings))
