"""The division of data into parts: equal numbers of different keys give equal parts."""

import json
import random

import datasets
import numpy as np
import pytest
import sounds
from PIL import Image

from headwise.data.division import divide
from headwise.data.images.corpus import load_images
from headwise.data.images.settings import FolderImages
from headwise.data.labelled.corpus import load_labelled_corpus
from headwise.data.labelled.probes import balanced_parts
from headwise.data.labelled.settings import LabelledFiles, LabelledHub
from headwise.data.pairs.corpus import load_parallel_corpus
from headwise.data.pairs.settings import ParallelFiles, ParallelHub
from headwise.data.running.corpus import load_text_corpus
from headwise.data.running.settings import TextFiles
from headwise.data.sound.corpus import load_speech
from headwise.data.sound.settings import FolderSpeech, PairedSpeech

FRACTIONS = {"validation_fraction": 0.15, "test_fraction": 0.1}
KEYS = 130
PARTS = {"train": 97, "validation": 20, "test": 13}  # 19.5 is rounded to an even number


def parallel_files(folder, keys):
    (folder / "en").write_text("\n".join(keys) + "\n")
    (folder / "de").write_text("x\n" * len(keys))
    files = {"source": folder / "en", "target": folder / "de"}
    return load_parallel_corpus(ParallelFiles(train=files, **FRACTIONS))


def parallel_hub(folder, keys):
    _dataset(folder, [{"en": key, "de": "x"} for key in keys])
    return load_parallel_corpus(
        ParallelHub(**_hub(folder), source_field="en", target_field="de", **FRACTIONS)
    )


def labelled_files(folder, keys):
    rows = [f"{key}\t{label}" for key, label in _labelled(keys)]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return load_labelled_corpus(LabelledFiles(train=folder / "train.tsv", **FRACTIONS))


def labelled_hub(folder, keys):
    _dataset(folder, [{"sentence": key, "label": label} for key, label in _labelled(keys)])
    return load_labelled_corpus(LabelledHub(**_hub(folder), **FRACTIONS))


def _labelled(keys):
    return [(key, "yes" if number % 2 else "no") for number, key in enumerate(keys)]


def _dataset(folder, records):
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "train.jsonl").write_text(lines)


def _hub(folder):
    return {"name": str(folder), "validation_split": None, "test_split": None}


@pytest.mark.parametrize("repetitions", [1, 2])
@pytest.mark.parametrize("load", [parallel_files, parallel_hub, labelled_files, labelled_hub])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equal_numbers_of_keys_give_equal_parts(load, repetitions, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    keys = [f"text {seed} {number}" for number in range(KEYS)] * repetitions
    random.Random(seed).shuffle(keys)
    (tmp_path / "data").mkdir()
    corpus = load(tmp_path / "data", keys)
    test = corpus.test[""] if isinstance(corpus.test, dict) else corpus.test
    sizes = {"train": corpus.train, "validation": corpus.validation, "test": test}
    sizes = {part: len(rows) for part, rows in sizes.items()}
    assert sizes == {part: size * repetitions for part, size in PARTS.items()}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_classes_of_a_probe_are_divided_equally(seed):
    classes = {name: [f"{name} {seed} {number}" for number in range(KEYS)] for name in "ab"}
    parts = balanced_parts(classes, **FRACTIONS, seed=seed)
    for part, rows in parts.items():
        assert [sum(label == name for _, label in rows) for name in "ab"] == [PARTS[part]] * 2


def test_equal_numbers_of_words_give_equal_parts_of_running_text(tmp_path):
    def sizes(line):
        (tmp_path / "a.txt").write_text(f"{line}\n" * KEYS)
        corpus = load_text_corpus(TextFiles(train=tmp_path / "a.txt", **FRACTIONS))
        return {part: sum(map(len, getattr(corpus, part))) for part in PARTS}

    assert sizes("one two three") == sizes("yes no yes") == sizes("a b c") == PARTS


@pytest.mark.parametrize("number", [3, 7, 25, 34, 35])
def test_equal_numbers_of_images_of_sounds_and_of_keys_are_divided_alike(tmp_path, number):
    shares = {"validation_fraction": 0.1, "test_fraction": 0.3}
    for folder in ("images", "clean", "noisy"):
        (tmp_path / folder).mkdir()
    for level in range(number):
        image = Image.fromarray(np.full((2, 2), level, np.uint8))
        image.save(tmp_path / "images" / f"{level}.png")
        for folder in ("clean", "noisy"):
            wave = sounds.tone(2_000, 8_000, 200 + level)
            sounds.write(tmp_path / folder / f"speaker {level}" / "a.wav", wave, 8_000)
    of = {"noisy": tmp_path / "noisy", "clean": tmp_path / "clean"}
    speech = {"rate": 8_000, "seconds": 1, **shares}
    images = load_images(FolderImages(train=tmp_path / "images", size=2, **shares))
    mixed, by_speaker = (
        load_speech(
            FolderSpeech(clean=of["clean"], noise=["white"], divide_by=by, **speech), floor=0.1
        )
        for by in ("file", "speaker")
    )
    paired = load_speech(PairedSpeech(train=of, **speech), floor=0.1)
    parts = list(divide(map(str, range(number)), 0.1, 0.3).values())
    expected = [parts.count(part) for part in PARTS]
    assert sum(expected) == number and min(expected) > 0
    assert [len(getattr(images, part)) for part in PARTS] == expected
    for corpus in (mixed, by_speaker, paired):
        assert [len(getattr(corpus, part).clean) for part in PARTS] == expected
