"""Readers of images: what is read, what is skipped and what is an error."""

import gzip
import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

import datasets
import numpy as np
import pytest
from image_files import noise, rows, write_folder
from PIL import Image

from headwise.data.division import PARTS
from headwise.data.images.corpus import load_images
from headwise.data.images.settings import FolderImages, HubImages, IdxImages
from headwise.data.sources import CorpusError

# --- folders and tar files ---------------------------------------------------------------------


def test_a_broken_image_is_skipped_and_counted(tmp_path):
    folder = write_folder(tmp_path / "images", noise(40))
    png = (folder / "cat" / "000.png").read_bytes()
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "cat" / "000.png").write_bytes(png[: len(png) // 2])
    (folder / "empty.png").write_bytes(b"")
    for kind in (np.float32, np.int32):  # which number is white?
        Image.fromarray(np.ones((4, 4), kind)).save(folder / f"{kind.__name__}.tif")
    (folder / "._cat.png").write_bytes(b"what another system left")
    (folder / "labels.csv").write_text("no image by name")
    images = load_images(FolderImages(train=folder, size=4))
    assert sum(len(getattr(images, part).pixels) for part in PARTS) == 39
    assert images.notes["skipped"].startswith(
        f"5 ({folder}/broken.jpg cannot be read as an image; "
    )
    assert "int32.tif has levels of 32 bits" in images.notes["skipped"]


def test_an_image_that_may_not_be_read_is_skipped_and_counted(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "images", noise(40))
    read = Path.read_bytes

    def refused(path):
        if path.name == "000.png":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)  # root may read everything
    images = load_images(FolderImages(train=folder, size=4))
    assert images.notes["skipped"] == f"1 ({folder}/cat/000.png cannot be read as an image)"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.txt": b"x"}, "has 0 images"),
        ({"a.png": b"x", "b.jpg": b""}, r"has 2 images, of which none .*: 2 \(.*/a.png cannot "),
    ],
)
def test_a_folder_without_images_is_an_error(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=f"{tmp_path} {message}"):
        load_images(FolderImages(train=tmp_path))


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere: cannot be read \(No such file"):
        load_images(FolderImages(train=tmp_path / "nowhere"))
    (tmp_path / "broken.tar").write_bytes(b"no tar")
    with pytest.raises(CorpusError, match=r"broken\.tar is neither a folder nor an intact"):
        load_images(FolderImages(train=tmp_path / "broken.tar"))
    (tmp_path / "idx.gz").write_bytes(gzip.compress(b"\x00\x00\x08\x03 and pixels"))
    with pytest.raises(CorpusError, match=r"such as MNIST's, set corpus: idx\.$") as error:
        load_images(FolderImages(train=tmp_path / "idx.gz"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["images.tar", "images.tar.gz"])
def test_a_tar_file_is_read_as_its_folder(tmp_path, name):
    folder = write_folder(tmp_path / "images", noise(40))
    (folder / "dog" / "broken.png").write_bytes(b"no image")
    with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
        archive.add(folder, "images")
    ours = load_images(FolderImages(train=tmp_path / name, size=4))
    theirs = load_images(FolderImages(train=folder, size=4))
    assert all(
        np.array_equal(getattr(ours, part).pixels, getattr(theirs, part).pixels) for part in PARTS
    )
    assert f"{name}:images/dog/broken.png" in ours.notes["skipped"]


def test_photographs_stand_upright(tmp_path):
    picture = Image.fromarray(np.array([[[255] * 3, [0] * 3], [[255] * 3, [0] * 3]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    picture.save(tmp_path / "a.png", exif=exif)
    settings = FolderImages(train=tmp_path, validation=tmp_path, test=tmp_path, size=2)
    assert load_images(settings).train.pixels[0, :, :, 0].tolist() == [[255, 255], [0, 0]]


# --- limits ------------------------------------------------------------------------------------


def png_header(width, height):
    """A PNG whose header alone is whole: who looks at more than its size finds nothing."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("error")
def test_an_image_of_too_many_pixels(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_header(50_000, 50_000))
    with pytest.raises(CorpusError, match=r"bomb.png has 50,000 × .* at most 100,.*max_pixels"):
        load_images(FolderImages(train=tmp_path))
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(CorpusError, match="of which none can be read"):  # within a larger limit
        load_images(FolderImages(train=tmp_path, max_pixels=10**10))
    assert before == Image.MAX_IMAGE_PIXELS


def test_the_keys_raise_the_limits(tmp_path):
    write_folder(tmp_path / "images", noise(12))
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.add(tmp_path / "images", "images")
    for name in ("images", "images.tar"):
        given = {"train": tmp_path / name, "size": 4}
        with pytest.raises(CorpusError, match=r"4 × 4 pixels, expected at most 15 .*max_pixels"):
            load_images(FolderImages(**given, max_pixels=15))
        with pytest.raises(CorpusError, match=r"png has .* at most 9; .*data.max_bytes"):
            load_images(FolderImages(**given, max_bytes=9))
        assert len(load_images(FolderImages(**given, max_pixels=16)).train.pixels) == 10


def test_what_is_no_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for settings in (FolderImages(train=pipe), IdxImages(train=pipe)):
        with pytest.raises(CorpusError, match="pipe is a pipe or a device, expected a regular"):
            load_images(settings)


# --- IDX files ---------------------------------------------------------------------------------


def idx_bytes(images):
    """As http://yann.lecun.com/exdb/mnist/ describes the files."""
    return struct.pack(">IIII", 0x00000803, *images.shape) + images.tobytes()


def write_idx(path, images):
    content = idx_bytes(images)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"])
def test_idx_files_are_read(tmp_path, name):
    levels = noise(30, height=5, width=5)[..., 0]
    train = write_idx(tmp_path / name, levels)
    test = write_idx(tmp_path / "t10k-images-idx3-ubyte", levels[:3])
    images = load_images(IdxImages(train=train, test=test, size=5))
    assert np.array_equal(images.test.pixels[..., 0], levels[:3])
    assert len(images.train.pixels) + len(images.validation.pixels) == 30
    assert load_images(IdxImages(train=train, size=4, mode="rgb")).train.pixels.shape[1:] == (
        4,
        4,
        3,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "has 115 bytes, expected 116 for 4 × 5 × 5 pixels"),
        (lambda content: content + b"x", "at least 117 bytes, expected 116"),
        (lambda content: content[:9], "and three sizes"),
        (lambda content: b"", "begins with the bytes , expected 00 00 08 03"),
        (lambda content: b"\x00\x00\x08\x01" + content[4:], "00 00 08 01, .* not of labels"),
        (lambda content: b"\x00\x00\x08\x03" + 12 * b"\x00", "at least one image"),
        (lambda content: gzip.compress(content)[:-9], "is not an intact gzip file"),
        (lambda content: b"\x00\x00\x08\x03" + 12 * b"\xff", "bytes, .* data.max_bytes"),
    ],
)
def test_a_corrupt_idx_file_is_an_error(tmp_path, change, message):
    path = tmp_path / "images"
    path.write_bytes(change(idx_bytes(noise(4, height=5, width=5)[..., 0])))
    with pytest.raises(CorpusError, match=f"{path} .*{message}"):
        load_images(IdxImages(train=path))


def test_a_missing_idx_file_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere: cannot be read \(No such file"):
        load_images(IdxImages(train=tmp_path / "nowhere"))


# --- Hugging Face datasets ---------------------------------------------------------------------


def png(image):
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in the format of CIFAR-10 on the hub: parquet with columns img and label."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(parts, column="img"):
        features = datasets.Features(
            {column: datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
        )
        folder = tmp_path / "plain_text"
        folder.mkdir()
        for part, contents in parts.items():
            values = [{"bytes": content, "path": None} for content in contents]
            columns = {column: values, "label": [0] * len(values)}
            table = datasets.Dataset.from_dict(columns, features=features)
            table.to_parquet(str(folder / f"{part}-00000-of-00001.parquet"))
        return str(folder)

    return write


def test_a_dataset_of_the_hub_is_read(hub):
    train, test = noise(30, 1), noise(3, 2)
    name = hub({"train": map(png, train), "test": map(png, test)})
    images = load_images(HubImages(name=name, field="img", size=4))
    assert np.array_equal(images.test.pixels, test)
    assert rows(images.train.pixels) | rows(images.validation.pixels) == rows(train)
    assert images.notes["images"].startswith(f"dataset {name}; 4×4")
    with pytest.raises(CorpusError, match=r"'image', expected a column of images .* img \(Image\)"):
        load_images(HubImages(name=name))
    with pytest.raises(CorpusError, match=r"data\.field is 'label', expected a column of"):
        load_images(HubImages(name=name, field="label"))
    with pytest.raises(CorpusError, match="'holdout'"):
        load_images(HubImages(name=name, field="img", test_split="holdout"))


def test_broken_images_of_a_dataset_are_skipped_and_counted(hub):
    contents = [*map(png, noise(30)), b"no image"]
    name = hub({"train": contents, "test": [b"", b"broken"]})
    images = load_images(HubImages(name=name, field="img", size=4, test_split=None))
    assert images.notes["skipped"].endswith("split 'train', row 30 cannot be read as an image)")
    with pytest.raises(CorpusError, match="split 'test', has 2 images, of which none can be"):
        load_images(HubImages(name=name, field="img", size=4))


def test_a_dataset_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere' .* could not be loaded"):
        load_images(HubImages(name=str(tmp_path / "nowhere")))
