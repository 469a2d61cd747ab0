"""The rules by which data are divided and sampled."""

import hashlib

import numpy as np
import pytest
import sounds
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from headwise.data.division import (
    PARTS,
    SAMPLE,
    divide,
    fixed_parts_of,
    hash_of,
    hashes,
    parts_of,
    sampled,
)
from headwise.data.images.corpus import load_images
from headwise.data.images.settings import FolderImages
from headwise.data.sound.corpus import load_speech
from headwise.data.sound.settings import FolderSpeech, PairedSpeech


def fixed(text, *shares):
    return PARTS[fixed_parts_of(hashes([text]), *shares)[0]]


def test_the_part_of_a_string_never_changes():
    """By hand, from sha256sum. If this fails, nobody's test set is what it was."""
    # sentence 10: 0.029; 14: 0.114, 17: 0.125, 6: 0.131, 13: 0.194; 23: 0.233 and others above
    found = fixed_parts_of(hashes(f"sentence {i}" for i in range(24)), 0.1, 0.1)
    assert np.flatnonzero(found == 2).tolist() == [10]
    assert np.flatnonzero(found == 1).tolist() == [6, 13, 14, 17]
    assert fixed("sentence 23", 0.1, 0.15) == "validation"
    assert fixed("中文 é", 0.1, 0.1) == "train"
    assert fixed("中文 é", 0.4, 0.4) == "validation"  # 0.788


def divided(keys, validation, test):
    """Keys sorted by their whole SHA-256: the rule as it is written, without arrays."""
    ordered = sorted(set(keys), key=lambda key: hashlib.sha256(key.encode()).digest())
    sizes = [max(1, round(share * len(ordered))) if share else 0 for share in (test, validation)]
    place = {key: n for n, key in enumerate(ordered)}
    return [
        "test" if place[k] < sizes[0] else "validation" if place[k] < sum(sizes) else "train"
        for k in keys
    ]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), min_size=1),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.0, 0.01, 0.25]),
)
def test_parts_are_those_of_the_whole_hash(keys, validation, test):
    found = parts_of(hashes(keys), validation, test)
    assert [PARTS[part] for part in found] == divided(keys, validation, test)


@pytest.mark.parametrize(
    ("number", "validation", "test", "expected"),
    [
        (3, 0.1, 0.1, [1, 1, 1]),
        (14, 0.1, 0.1, [12, 1, 1]),
        (16, 0.1, 0.1, [12, 2, 2]),
        (100, 0.01, 0.25, [74, 1, 25]),
        (100, 0.001, 0.0, [99, 1, 0]),
        (100, 0.0, 0.0, [100, 0, 0]),
        (2, 0.1, 0.1, [0, 1, 1]),
        (0, 0.1, 0.1, [0, 0, 0]),
    ],
)
def test_a_part_has_its_share_to_the_nearest_number(number, validation, test, expected):
    found = parts_of(hashes(map(str, range(number))), validation, test)
    assert np.bincount(found, minlength=3).tolist() == expected


@given(st.lists(st.integers(0, 50), min_size=1), st.sampled_from([0.05, 0.3, 0.6]))
def test_a_larger_sample_has_all_of_a_smaller_one(numbers, fraction):
    found = hashes(map(str, numbers), SAMPLE)
    smaller, larger = sampled(found, fraction), sampled(found, min(1.0, 2 * fraction))
    assert not (smaller & ~larger).any()
    chosen = {number for number, kept in zip(numbers, smaller, strict=True) if kept}
    assert len(chosen) == max(1, round(fraction * len(set(numbers))))


def test_half_a_surrogate_pair_has_a_hash():
    assert hash_of("\ud800") != hash_of("")


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
    assert [len(getattr(images, part).pixels) for part in PARTS] == expected
    for corpus in (mixed, by_speaker, paired):
        assert [len(getattr(corpus, part).clean) for part in PARTS] == expected
