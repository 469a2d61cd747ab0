"""Palettes: nearest colours, exactness, files."""

import json

import numpy as np
import pytest

from headwise.data.images.palette import FILE_NAME, PaletteSettings, Raster
from headwise.data.sources import CorpusError


def noise(*shape, seed=0, levels=256):
    return np.random.default_rng(seed).integers(0, levels, shape, np.uint8)


def naive_nearest(images, colors):
    """argmin_k ‖p − c_k‖² of each pixel, as it is written."""
    found = []
    for pixel in images.reshape(-1, images.shape[-1]).astype(int):
        distances = [sum((pixel - color) ** 2) for color in colors.astype(int)]
        found.append(distances.index(min(distances)))
    return np.array(found).reshape(len(images), -1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("number", "height", "width"), [(1, 1, 1), (7, 3, 2), (2, 8, 16)])
@pytest.mark.parametrize("colors", [2, 9])
def test_pixels_take_the_nearest_colour(number, height, width, channels, colors):
    images = noise(number, height, width, channels)
    raster = Raster(height, width, noise(colors, channels, seed=1))
    ids = raster.encode(images)
    assert np.array_equal(ids, naive_nearest(images, raster.colors))
    assert len(raster) == ids.shape[1] == height * width


@pytest.mark.parametrize("channels", [1, 3])
def test_few_colours_are_kept_exactly(channels):
    images = noise(20, 4, 4, channels, levels=2)
    raster = Raster.learn(images, PaletteSettings(colors=8))
    assert len(raster.colors) == 2**channels
    decoded = raster.decode(raster.encode(images))
    assert (decoded == images).all()


def test_a_palette_is_of_clusters():
    centres = np.array([[20, 20, 20], [200, 30, 30], [30, 30, 200]])
    which = noise(300, 4, 4, levels=3)
    images = (centres[which] + noise(300, 4, 4, 3, seed=1, levels=9) - 4).astype(np.uint8)
    settings = PaletteSettings(colors=3)
    raster = Raster.learn(images, settings)
    assert np.abs(raster.colors.astype(int) - centres[[0, 2, 1]]).max() <= 1
    assert np.array_equal(raster.colors, Raster.learn(images, settings).colors)


def test_colours_are_where_the_pixels_are():
    """All levels of grey are there, but most pixels are dark."""
    images = noise(400, 8, 8, 1, levels=50)
    images[:20] = noise(20, 8, 8, 1, seed=1)
    raster = Raster.learn(images, PaletteSettings(colors=8, pixels_per_image=64))
    assert (raster.colors < 60).sum() >= 4


def test_a_draw_may_have_fewer_colours_than_the_palette():
    """One pixel of each image is drawn, and it is black in most."""
    images = np.zeros((100, 4, 4, 1), np.uint8)
    images[0] = np.arange(16).reshape(4, 4, 1)
    raster = Raster.learn(images, PaletteSettings(colors=5, pixels_per_image=1))
    assert 1 <= len(raster.colors) <= 5


def test_images_of_another_size_are_refused():
    raster = Raster(2, 2, noise(4, 3))
    with pytest.raises(ValueError, match=r"images is \(1, 2, 3, 3\), expected \(images, 2, 2, 3\)"):
        raster.encode(noise(1, 2, 3, 3))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_palette_is_saved_and_loaded(tmp_path, channels):
    raster = Raster(3, 5, noise(7, channels))
    raster.save(tmp_path)
    loaded = Raster.load(tmp_path)
    assert (loaded.height, loaded.width) == (3, 5)
    assert loaded.colors.dtype == np.uint8 and np.array_equal(loaded.colors, raster.colors)
    assert loaded.bos_token_id == 7
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, "SHA256SUMS"}


@pytest.mark.parametrize(
    "content",
    [
        None,
        "no json",
        '{"height": 1, "width": 1}',
        "[1, 1]",
        json.dumps({"height": 1, "width": 1, "colors": [["red"]]}),
    ],
)
def test_a_file_that_is_no_palette_is_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(CorpusError, match=f"{tmp_path}/{FILE_NAME} has no palette"):
        Raster.load(tmp_path)
