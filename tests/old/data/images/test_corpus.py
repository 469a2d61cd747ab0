"""Image data in three parts: how they are divided, fitted and paired."""

import hashlib

import numpy as np
import pytest
from image_files import noise, rows, write_folder
from PIL import Image

from headwise.data.division import PARTS
from headwise.data.images.corpus import load_images
from headwise.data.images.settings import (
    FolderImages,
    PairImages,
    PhotographsImages,
)
from headwise.data.sources import CorpusError

# --- division ----------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [1, 4, 7])
def test_no_pixel_of_a_photograph_is_in_two_parts(patch, monkeypatch):
    """Each pixel's colour is its own number, which has to stay in one part."""
    from sklearn.utils import Bunch

    height, width = 6 * patch, 15 * patch + 2
    numbers = np.arange(2 * height * width).reshape(2, height, width, 1)
    colours = np.concatenate([numbers >> 16, numbers >> 8, numbers], axis=-1) & 255
    photographs = Bunch(images=list(colours.astype(np.uint8)))
    monkeypatch.setattr("sklearn.datasets.load_sample_images", lambda: photographs)
    images = load_images(PhotographsImages(patch=patch, size=patch))
    found = {}
    for part in PARTS:
        red, green, blue = getattr(images, part).pixels.astype(int).reshape(-1, 3).T
        numbers = red << 16 | green << 8 | blue
        found[part] = set(numbers.tolist())
        # Both photographs are in all parts, and held-out patches do not overlap.
        assert set(numbers // (height * width)) == {0, 1}
        assert part == "train" or len(found[part]) == len(numbers)
    assert not found["train"] & found["validation"]
    assert not found["train"] & found["test"]
    assert not found["validation"] & found["test"]
    assert len(found["train"]) > len(found["test"]) > 0


@pytest.mark.parametrize(("validation", "test"), [(0.1, 0.1), (0.03, 0.27)])
def test_regions_of_photographs_are_taken_in_the_order_of_their_hashes(validation, test):
    """Pairs depend on the order of the patches, too, so that no result may change with it."""
    from sklearn.datasets import load_sample_images

    side = 3 * 20
    expected = {part: [] for part in PARTS}
    for number, photograph in enumerate(load_sample_images().images):
        height, width, _ = photograph.shape
        places = [(y, x) for y in range(0, height, side) for x in range(0, width, side)]
        places = [(y, x) for y, x in places if y + side <= height and x + side <= width]
        places.sort(key=lambda place: hashlib.sha256(f"{number} {place}".encode()).digest())
        tests = max(1, round(test * len(places)))
        held_out = tests + max(1, round(validation * len(places)))
        for index, (top, left) in enumerate(places):
            part = "test" if index < tests else "validation" if index < held_out else "train"
            region = photograph[top : top + side, left : left + side]
            step = 10 if part == "train" else 20
            expected[part] += [
                region[y : y + 20, x : x + 20]
                for y in range(0, side - 19, step)
                for x in range(0, side - 19, step)
            ]
    images = load_images(
        PhotographsImages(patch=20, size=20, validation_fraction=validation, test_fraction=test)
    )
    for part in PARTS:
        assert np.array_equal(getattr(images, part).pixels, np.stack(expected[part]))


def test_a_folder_with_folders_is_divided_by_content(tmp_path):
    originals = noise(60)
    folder = write_folder(tmp_path / "images", originals)
    # The same image under another name falls into the same part.
    Image.fromarray(originals[7]).save(folder / "copy.png")
    images = load_images(FolderImages(train=folder, size=4))
    assert sum(len(getattr(images, part).pixels) for part in PARTS) == 61
    assert rows(np.concatenate([getattr(images, part).pixels for part in PARTS])) == rows(originals)
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not rows(getattr(images, one).pixels) & rows(getattr(images, other).pixels)
    assert sum(originals[7].tobytes() in rows(getattr(images, part).pixels) for part in PARTS) == 1


def test_given_parts_stay_as_they_are(tmp_path):
    settings = FolderImages(
        train=write_folder(tmp_path / "a", noise(5, 1)),
        validation=write_folder(tmp_path / "b", noise(3, 2)),
        test=write_folder(tmp_path / "c", noise(2, 3)),
        size=4,
    )
    images = load_images(settings)
    assert [len(getattr(images, part).pixels) for part in PARTS] == [5, 3, 2]
    assert rows(images.test.pixels) == rows(noise(2, 3))
    images = load_images(
        settings.model_copy(update={"validation": None, "validation_fraction": 1e-9})
    )
    assert [len(getattr(images, part).pixels) for part in PARTS] == [4, 1, 2]


@pytest.mark.parametrize("number", [1, 2])
def test_too_few_images_for_three_parts_are_an_error(tmp_path, number):
    folder = write_folder(tmp_path / "images", noise(number))
    with pytest.raises(CorpusError, match=r"the train part has 0 images \(train 0, .* give more"):
        load_images(FolderImages(train=folder, size=4))


# --- size and mode -----------------------------------------------------------------------------


def parts_of(folder, **settings):
    """The only image of a folder, given as each part."""
    settings = FolderImages(train=folder, validation=folder, test=folder, **settings)
    return load_images(settings).train.pixels[0]


def test_images_are_cut_square_and_resized(tmp_path):
    image = np.zeros((8, 16, 3), np.uint8)
    image[:, :4], image[:, 4:12], image[:, 12:] = 50, 100, 150
    Image.fromarray(image).save(tmp_path / "wide.png")
    # What is left and right of the middle is cut off; a filter sees a little over the edge.
    assert np.abs(parts_of(tmp_path, size=4).astype(int) - 100).max() < 10
    assert parts_of(tmp_path, size=4, mode="grey").shape == (4, 4, 1)


def test_modes_of_all_kinds_come_as_they_look(tmp_path):
    def only(picture, name="a.png", **options):
        for path in tmp_path.iterdir():
            path.unlink()
        picture.save(tmp_path / name, **options)
        return parts_of(tmp_path, size=2)

    hidden = np.zeros((2, 2, 4), np.uint8)  # black, but transparent: it looks white
    assert (only(Image.fromarray(hidden)) == 255).all()
    deep = np.full((2, 2), 200 << 8, np.uint16)  # 16 bits per pixel
    assert (only(Image.fromarray(deep)) == 200).all()
    assert (only(Image.fromarray(deep), "a.pgm") == 200).all()
    deep[0] = 3 << 8
    assert (
        only(Image.fromarray(deep), transparency=3 << 8)[..., 0] == [[255] * 2, [200] * 2]
    ).all()
    assert (only(Image.new("1", (2, 2), 1)) == 255).all()
    assert (only(Image.new("L", (2, 2), 7)) == 7).all()
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([9, 9, 9, 1, 2, 3])
    assert (only(palette) == [1, 2, 3]).all()


# --- pairs -------------------------------------------------------------------------------------


@pytest.fixture
def two_sources(tmp_path):
    """Folders of 4 dark and of 9 light images, the same for each part."""
    dark, light = noise(4, 1) // 2, noise(9, 2) // 2 + 128
    folders = []
    for name, images in (("dark", dark), ("light", light)):
        folder = write_folder(tmp_path / name, images)
        folders.append(
            FolderImages(train=folder, validation=folder, test=folder, size=4, mode="grey")
        )
    return folders


@pytest.mark.parametrize("swapped", [False, True])
def test_halves_are_of_their_sources(two_sources, swapped):
    left, right = reversed(two_sources) if swapped else two_sources
    images = load_images(PairImages(left=left, right=right))
    assert images.train.pixels.shape == (9, 4, 8, 1)
    halves = {"left": images.train.pixels[:, :, :4], "right": images.train.pixels[:, :, 4:]}
    dark, light = (halves["right"], halves["left"]) if swapped else halves.values()
    assert dark.max() < 128 <= light.min()
    assert np.array_equal(light, load_images(two_sources[1]).train.pixels)
    # The smaller source takes turns: each image twice, one of them three times.
    counts = sorted(list(map(bytes, dark)).count(image) for image in rows(dark))
    assert counts == [2, 2, 2, 3]


def test_a_grey_half_beside_a_coloured_one_has_three_channels():
    images = load_images(PairImages())
    assert images.train.pixels.shape[1:] == (8, 16, 3)
    digits = images.train.pixels[:, :, :8]
    assert (digits[..., 0] == digits[..., 2]).all()
    assert {"left images", "right train", "test"} <= set(images.notes)
    # No half of a held-out pair is trained on.
    trained = rows(images.train.pixels[:, :, :8])
    assert not trained & rows(images.test.pixels[:, :, :8])
    assert not trained & rows(images.validation.pixels[:, :, :8])
