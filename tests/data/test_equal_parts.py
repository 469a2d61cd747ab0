"""The division of data into parts: equal numbers of different keys give equal parts."""

import numpy as np
import pytest
import sounds
from PIL import Image

from headwise.data.division import divide
from headwise.data.images.corpus import load_images
from headwise.data.images.settings import FolderImages
from headwise.data.labelled.probes import balanced_parts
from headwise.data.sound.corpus import load_speech
from headwise.data.sound.settings import FolderSpeech, PairedSpeech

FRACTIONS = {"validation_fraction": 0.15, "test_fraction": 0.1}
KEYS = 130
PARTS = {"train": 97, "validation": 20, "test": 13}  # 19.5 is rounded to an even number


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_classes_of_a_probe_are_divided_equally(seed):
    classes = {name: [f"{name} {seed} {number}" for number in range(KEYS)] for name in "ab"}
    parts = balanced_parts(classes, **FRACTIONS, seed=seed)
    for part, rows in parts.items():
        assert [sum(label == name for _, label in rows) for name in "ab"] == [PARTS[part]] * 2


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
