"""Readers of images: what is read, what is skipped and what is an error."""

import gzip
import io
import struct
import tarfile

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
    (folder / "._cat.png").write_bytes(b"what another system left")
    (folder / "labels.csv").write_text("no image by name")
    images = load_images(FolderImages(train=folder, size=4))
    assert sum(len(getattr(images, part)) for part in PARTS) == 39
    assert images.notes["skipped"].startswith(f"3 images that cannot be read: {folder}/broken.jpg")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has 0 image files"),
        ({"notes.txt": b"x"}, "has 0 image files"),
        ({"a.png": b"x", "b.jpg": b""}, "has 2 image files, of which none can be read"),
    ],
)
def test_a_folder_without_images_is_an_error(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=f"{tmp_path} {message}"):
        load_images(FolderImages(train=tmp_path))


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match="nowhere is neither a folder nor an intact tar file"):
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
    assert all(np.array_equal(getattr(ours, part), getattr(theirs, part)) for part in PARTS)
    assert f"{name}:images/dog/broken.png" in ours.notes["skipped"]


def test_photographs_stand_upright(tmp_path):
    picture = Image.fromarray(np.array([[[255] * 3, [0] * 3], [[255] * 3, [0] * 3]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    picture.save(tmp_path / "a.png", exif=exif)
    settings = FolderImages(train=tmp_path, validation=tmp_path, test=tmp_path, size=2)
    assert load_images(settings).train[0, :, :, 0].tolist() == [[255, 255], [0, 0]]


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
    assert np.array_equal(images.test[..., 0], levels[:3])
    assert len(images.train) + len(images.validation) == 30
    assert load_images(IdxImages(train=train, size=4, mode="rgb")).train.shape[1:] == (4, 4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "has 115 bytes, expected 116 for 4 × 5 × 5 pixels"),
        (lambda content: content + b"x", "more than 116 bytes, expected 116"),
        (lambda content: content[:9], "9 bytes, expected"),
        (lambda content: b"", "begins with the bytes , expected 00 00 08 03"),
        (
            lambda content: b"\x00\x00\x08\x01" + content[4:],
            "00 00 08 01, .* not of labels",
        ),
        (lambda content: b"\x00\x00\x08\x03" + 12 * b"\x00", "at least one image"),
        (lambda content: gzip.compress(content)[:-9], "is not an intact gzip file"),
        (
            lambda content: b"\x00\x00\x08\x03" + 12 * b"\xff",
            "expected at most 100,000,000 of them",
        ),
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
    assert np.array_equal(images.test, test)
    assert rows(images.train) | rows(images.validation) == rows(train)
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
    assert images.notes["skipped"].endswith("split 'train', row 30")
    with pytest.raises(CorpusError, match="split 'test': none of its 2 images can be read"):
        load_images(HubImages(name=name, field="img", size=4))


def test_a_dataset_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere' .* could not be loaded"):
        load_images(HubImages(name=str(tmp_path / "nowhere")))
