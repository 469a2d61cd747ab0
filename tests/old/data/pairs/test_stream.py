"""Sentence pairs that are read while they are trained on."""

import json
import warnings
from itertools import islice

import datasets
import pytest
import tiny_tasks

from headwise.data.pairs.corpus import load_parallel_corpus
from headwise.data.pairs.settings import ParallelFiles, ParallelHub
from headwise.data.sources import CorpusError
from headwise.recipes import RecipeError, load_recipe
from headwise.recipes.catalogue import task_class

STREAM = [
    "data.streaming=true",
    "data.held_out_rows=20",
    "data.shuffle_rows=16",
    "tokenizer.sample_rows=30",
]


def pairs(start, stop):
    return [(f"one {i} of some", f"eins {i} von einigen") for i in range(start, stop)]


def write_pairs(folder, name, found):
    paths = {"source": folder / f"{name}.en", "target": folder / f"{name}.de"}
    for path, side in zip(paths.values(), zip(*found, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in side))
    return paths


@pytest.fixture
def files(tmp_path):
    return write_pairs(tmp_path, "train", pairs(0, 100))


@pytest.fixture
def hub(tmp_path):
    rows = [json.dumps({"en": source, "de": target}) for source, target in pairs(0, 100)]
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text("\n".join(rows))
    own = {"validation_split": None, "test_split": None}
    return {"name": str(tmp_path / "hub"), "source_field": "en", "target_field": "de", **own}


def test_pairs_that_are_left_out_make_another_stream(files):
    rows = {"train": files, "streaming": True, "held_out_rows": 10}
    found = [
        load_parallel_corpus(ParallelFiles(**rows, **filters)).digest
        for filters in ({}, {"max_length": 4}, {"max_length": 5}, {"max_ratio": 4})
    ]
    assert len(set(found)) == 4


def test_files_and_datasets_give_all_pairs_but_those_that_are_held_out(files, hub):
    rows = {"streaming": True, "held_out_rows": 10}
    for settings in (ParallelFiles(train=files, **rows), ParallelHub(**hub, **rows)):
        corpus = load_parallel_corpus(settings)
        assert list(corpus.validation) == pairs(0, 10)
        assert list(corpus.test) == pairs(10, 20)
        assert list(corpus.train) == pairs(20, 100)
        assert [row["row"] for row in corpus.train.rows()] == pairs(20, 100)
        assert corpus.notes["test"].startswith("10 pairs; rows 11 to 20 of the training data")
        assert "nothing is stored or counted" in corpus.notes["train"]


def test_held_out_splits_of_a_stream_are_not_stored_either(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "stored")
    (tmp_path / "hub" / "validation.jsonl").write_text('{"en": "one", "de": "eins"}')
    hub |= {"streaming": True, "held_out_rows": 10}
    settings = ParallelHub(**{**hub, "validation_split": "validation"})
    corpus = load_parallel_corpus(settings)
    assert list(corpus.validation) == [("one", "eins")]
    assert not list((tmp_path / "stored").rglob("*.arrow"))
    # A stream has no slices.
    part = {"validation_split": "train[:3]", "test_split": "validation"}
    corpus = load_parallel_corpus(ParallelHub(**{**hub, **part}))
    assert list(corpus.validation) == pairs(0, 3)
    assert list((tmp_path / "stored").rglob("*.arrow"))


def test_pairs_are_cleaned_on_the_way(tmp_path):
    found = [*pairs(0, 3), ("", "leer"), ("a b c d", "kurz"), *pairs(3, 5)]
    given = write_pairs(tmp_path, "held-out", pairs(5, 7))
    settings = ParallelFiles(
        train=write_pairs(tmp_path, "train", found),
        validation=given,
        test=given,
        tests={"further": given},
        streaming=True,
        max_ratio=2,
    )
    corpus = load_parallel_corpus(settings)
    assert list(corpus.train) == pairs(0, 5)
    for part in (corpus.validation, corpus.test, corpus.tests["further"]):
        assert list(part) == pairs(5, 7)


def test_what_a_stream_of_pairs_cannot_is_refused(files, tmp_path):
    with pytest.raises(CorpusError, match=r"first file has 100 rows, expected more than the 100 "):
        load_parallel_corpus(ParallelFiles(train=files, streaming=True, held_out_rows=50))
    with pytest.raises(ValueError, match=r"drop_leaks is true and streaming is true"):
        ParallelFiles(train=files, streaming=True, drop_leaks=True)
    path = tiny_tasks.write_recipe("translation", tmp_path)
    for changes, message in (
        (["training.max_steps=null", "training.epochs=2"], r"epochs is 2.* expected training.max"),
        (
            ["model.positions=learned", "model.max_positions=64"],
            r"max_positions is 64 and data.str",
        ),
        (["model.positions=learned"], r"max_positions is 512 and data.str"),
    ):
        with pytest.raises(RecipeError, match=message):
            load_recipe(str(path), [*STREAM, *changes])


# --- the task ---------------------------------------------------------------------------------


def prepare(folder, *changes):
    path = tiny_tasks.write_recipe("translation", folder)
    recipe = load_recipe(str(path), [*STREAM, *changes]).recipe
    return recipe, task_class("translation").prepare(recipe)


def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(tmp_path):
    tiny_tasks.train_and_go_on(*prepare(tmp_path, "training.max_steps=6"), tmp_path)


def test_processes_share_a_pass_and_long_pairs_are_left_out(tmp_path):
    _, made = prepare(tmp_path)
    dataset = made.train.make(list(made.corpus.train))
    lengths = dataset.lengths.max(axis=1)
    budget = int(max(lengths)) - 1
    seen, told = [], []
    for rank in range(2):
        batches = made.train.batches(made.collate, 2 * budget, rank=rank, world_size=2)
        with warnings.catch_warnings(record=True) as caught:
            for batch in batches:
                if batches.state_dict()["passes"]:
                    break
                assert batch["input_ids"].numel() <= budget
                seen += [tuple(row[row >= 0].tolist()) for row in batch["labels"]]
        told += [str(warning.message) for warning in caught]
    assert len({each for each in told if "longer than a batch of one process" in each}) == 1
    fitting = [i for i in range(len(dataset)) if lengths[i] <= budget]
    assert len(fitting) < len(dataset)
    assert sorted(seen) == sorted(tuple(dataset[i]["labels"]) for i in fitting)
    with pytest.raises(ValueError, match="batch_tokens is 2, expected at least"):
        next(iter(made.train.batches(made.collate, 2)))


def test_the_vocabulary_is_learned_from_the_first_pairs(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    learned = []
    kind = task_class("translation").tokenizer_class
    train = kind.train

    def noting(found, settings):
        learned.extend(found)
        return train(found, settings)

    monkeypatch.setattr(kind, "train", noting)
    _, made = prepare(tmp_path)
    assert learned == list(islice(made.corpus.train, 30))
    with pytest.raises(ValueError, match=r"train part is a stream .* expected a part that is stor"):
        made.part("train")
