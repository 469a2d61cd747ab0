"""Images in three parts: loaded, fitted to one size, and divided.

All images of a corpus have one size. Parts that are given are used as they are. Parts that are not
given are divided off the training images by a hash of their pixels: an image falls into the same
part on every machine, and an image that occurs twice is never in two parts. Patches of photographs
are divided by regions of the photographs, so that patches that overlap are in the same part.

The images stand on the disk, in the cache, where every run finds them (`data.store`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from typing_extensions import Self

from headwise.data.arrays import growing, mapped, pieces
from headwise.data.division import PARTS, Part, divide, sample
from headwise.data.images.reading import read_digits, read_images, read_patches
from headwise.data.images.settings import (
    DigitsImages,
    FolderTest,
    HubImages,
    HubImagesTest,
    IdxTest,
    ImageSettings,
    ImageTest,
    PairImages,
    PhotographsImages,
    Source,
    image_shape,
)
from headwise.data.settings import given_parts, in_test_set
from headwise.data.sources import CorpusError, file_in_words, hub_identity, part_in_words
from headwise.data.store import file_identity, stored

_FACTS = "facts.json"
Chosen = tuple[np.ndarray, Sequence[int]]  # images, and the indices of those that are meant


@dataclass(frozen=True)
class ImageCorpus:
    """Images in three parts, none of them empty.

    Attributes:
        train, validation, test: bytes, `(images, height, width, channels)`.
        notes: facts about the images, from a label to a text.
        digest: a hash of the images and of their division, without further test sets.
        digests: a hash of the images of each part, and of each further test set by its name.
        tests: the images of each further test set by its name.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: dict[str, str]
    digest: str
    digests: dict[str, str]
    tests: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls, train: np.ndarray, validation: np.ndarray, test: np.ndarray, notes: dict[str, str]
    ) -> Self:
        """Makes a corpus of images, and computes their hashes."""
        whole = hashlib.sha256()
        parts = dict(zip(PARTS, (train, validation, test), strict=True))
        for part, images in parts.items():
            whole.update(f"{part} {images.shape}".encode())
            for some in pieces(images):
                whole.update(some.tobytes())
        digests: dict[str, str] = {part: digest_images(images) for part, images in parts.items()}
        return cls(train, validation, test, notes, whole.hexdigest(), digests)


def load_images(settings: ImageSettings) -> ImageCorpus:
    """Reads images, skips those that cannot be read, and divides off the parts that are not given.

    Args:
        settings: which images to read.

    Raises:
        CorpusError: if the data cannot be read or are too few for three parts. The message names
            the file or the field and says how to mend it.

    Example:
        >>> images = load_images(DigitsImages())
        >>> images.train.shape, images.validation.shape, images.test.shape
        ((1437, 8, 8, 1), (180, 8, 8, 1), (180, 8, 8, 1))
    """
    described = settings.model_dump_json(exclude={"tests"})
    if isinstance(settings, PairImages):
        left, right = load_images(settings.left), load_images(settings.right)
        made_of = [described, left.digest, right.digest]
        return _open(stored("images", made_of, partial(_make_pairs, settings, left, right)))
    made_of = [described, _scikit_learn(), *map(_identity, _given(settings).values())]
    folder = stored("images", made_of, partial(_make, settings))
    corpus = _open(folder)
    for name, test in settings.tests.items():
        with in_test_set(name):
            made_of = [folder.name, test.model_dump_json(), _identity(test)]
            found = stored("images", made_of, partial(_make_test, test, settings, corpus.train))
        corpus.tests[name] = mapped(found / "test.npy")
        note, corpus.digests[name] = json.loads((found / _FACTS).read_text(encoding="utf-8"))
        corpus.notes[f"test {name}"] = note
    return corpus


def digest_images(images: np.ndarray) -> str:
    """Returns a hash of the images of one part, after they were fitted to their size."""
    digest = hashlib.sha256(str(images.shape).encode())
    for some in pieces(images):
        digest.update(some.tobytes())
    return digest.hexdigest()


def fitted(picture: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the middle of an image in a size and a mode.

    Args:
        picture: the image.
        shape: height, width and channels: 3 for RGB and 1 for levels of grey.
    """
    height, width, channels = shape
    if picture.has_transparency_data:  # transparent pixels have a colour that nobody sees
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    if picture.mode.startswith("I;16"):  # convert would cut values off at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    picture = picture.convert("RGB" if channels == 3 else "L")
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(shape)


# --- sources ----------------------------------------------------------------------------------


def _given(settings: Source) -> dict[Part, ImageTest]:
    """Returns the source of each part that has one of its own."""
    if isinstance(settings, DigitsImages | PhotographsImages):
        return {}
    if isinstance(settings, HubImages):
        of_all = {key: getattr(settings, key) for key in ("name", "config", "revision", "field")}
        return {p: HubImagesTest(split=s, **of_all) for p, s in settings.splits().items()}
    kind = FolderTest if settings.corpus == "folder" else IdxTest
    return {part: kind(path=path) for part, path in given_parts(settings).items()}


def _identity(source: ImageTest) -> str:
    """Returns what tells images from others, and from what stood in their place before."""
    if isinstance(source, HubImagesTest):
        return hub_identity(source.name, source.split, source.config, source.revision)
    path = source.path.expanduser()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return hashlib.sha256("\n".join(map(file_identity, files)).encode()).hexdigest()


def _origin(source: ImageTest) -> str:
    if isinstance(source, HubImagesTest):
        return source.origin
    path = source.path
    return f"folder {path.name}" if path.expanduser().is_dir() else file_in_words(path)


def _scikit_learn() -> str:
    return f"scikit-learn {metadata.version('scikit-learn')}"


# --- images in parts --------------------------------------------------------------------------


def _make(settings: Source, folder: Path) -> None:
    """Reads, fits and divides images, and writes them to a folder."""
    broken: list[str] = []
    given = _given(settings)
    read: dict[Part, np.ndarray] = {}
    pictures, origin = _pictures(settings, given, broken)
    for part, of_part in pictures.items():
        read[part] = _written(folder / f"{part}.read", of_part, settings)
    keys = _keys(read["train"])
    part_of = divide(keys, *settings.fractions(read))
    parts: dict[Part, Chosen] = {
        part: (read["train"], [i for i, key in enumerate(keys) if part_of[key] == part])
        for part in PARTS
    }
    parts |= {p: (images, range(len(images))) for p, images in read.items() if p != "train"}
    for part, (_, indices) in parts.items():
        if not indices:
            counts = ", ".join(f"{name} {len(found):,}" for name, (_, found) in parts.items())
            raise CorpusError(
                f"the {part} part has 0 images ({counts}; {origin}), expected at least one; give "
                "more images, or a source of its own for the part"
            )
    height, width, _ = image_shape(settings)
    notes = {"images": f"{origin}; {height}×{width} pixels"}
    origins = {
        part: f"split {source.split}" if isinstance(source, HubImagesTest) else _origin(source)
        for part, source in given.items()
    }
    skipped = {}
    if broken:
        more = ", ..." if len(broken) > 1 else ""
        skipped["skipped"] = f"{len(broken):,} images that cannot be read: {broken[0]}{more}"
    _write_parts(folder, parts, settings.train_fraction, notes, origins, skipped)
    for part in read:
        (folder / f"{part}.read").unlink()


def _pictures(
    settings: Source, given: Mapping[Part, ImageTest], broken: list[str]
) -> tuple[Mapping[Part, Iterable[Image.Image]], str]:
    """Returns the images of each part that is given, and words on where they come from."""
    if isinstance(settings, DigitsImages):
        return {"train": read_digits()}, f"digits of {_scikit_learn()}"
    if isinstance(settings, PhotographsImages):
        patch = settings.patch
        origin = f"{patch}×{patch} patches of the photographs of {_scikit_learn()}"
        return read_patches(patch, *settings.fractions()), origin
    if isinstance(settings, HubImages):
        origin = settings.origin
    else:
        origin = f"{settings.corpus} {settings.train.name}"
    return {part: read_images(given[part], settings, broken) for part in given}, origin


def _make_test(test: ImageTest, settings: Source, train: np.ndarray, folder: Path) -> None:
    """Writes the images of a further test set to a folder; `train` are those of the corpus."""
    broken: list[str] = []
    images = _written(folder / "test.npy", read_images(test, settings, broken), settings)
    digest = digest_images(images)
    note = _note(images, _origin(test), set(_keys(train)), digest)
    if broken:
        note += f"; skipped: {len(broken):,} images that cannot be read: {broken[0]}"
    (folder / _FACTS).write_text(json.dumps([note, digest]), encoding="utf-8")


def _written(path: Path, pictures: Iterable[Image.Image], settings: Source) -> np.ndarray:
    """Fits images to one size and writes them; returns them as they stand on the disk."""
    shape = image_shape(settings)
    with growing(path, np.uint8, shape) as add:
        for picture in pictures:
            add(fitted(picture, shape)[None])
    return mapped(path)


def _write_parts(
    folder: Path,
    parts: Mapping[Part, Chosen],
    train_fraction: float,
    notes: dict[str, str],
    origins: Mapping[Part, str],
    further: Mapping[str, str],
) -> None:
    """Writes the images of each part, and what is known of them."""
    trained: Collection[str] = ()
    sampled: dict[str, str] = {}
    for part, (images, indices) in parts.items():
        if part == "train":
            keys = _keys(images)
            indices, sampled = sample(indices, keys.__getitem__, train_fraction, "images")
            trained = {keys[i] for i in indices}
        with growing(folder / f"{part}.npy", np.uint8, images.shape[1:]) as add:
            for some in pieces(np.array(indices)):
                add(images[some])
    corpus = ImageCorpus.of(*_open_parts(folder), notes)
    for part in PARTS:
        known = () if part == "train" else trained
        images, digest = getattr(corpus, part), corpus.digests[part]
        notes[part] = _note(images, origins.get(part, ""), known, digest)
    all_notes = {**notes, **sampled, **further}
    facts = {"notes": all_notes, "digest": corpus.digest, "digests": corpus.digests}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _open(folder: Path) -> ImageCorpus:
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    return ImageCorpus(*_open_parts(folder), **facts)


def _open_parts(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    train, validation, test = (mapped(folder / f"{part}.npy") for part in PARTS)
    return train, validation, test


def _note(images: np.ndarray, origin: str, trained: Collection[str], digest: str) -> str:
    """Returns what the notes say of a part; `trained` are the keys of the training images."""
    size = f"{len(images):,} images"
    if trained and (repeated := sum(key in trained for key in _keys(images))):
        size += f", of which {repeated:,} are also in the training part"
    return part_in_words(size, origin, "pixels", digest)


def _keys(images: np.ndarray) -> list[str]:
    """Returns a hash of the pixels of each image, by which it is divided and known again."""
    return [hashlib.sha256(image.tobytes()).hexdigest() for image in images]


# --- pairs ------------------------------------------------------------------------------------


def _make_pairs(settings: PairImages, left: ImageCorpus, right: ImageCorpus, folder: Path) -> None:
    """Puts images of two sources side by side, and writes them to a folder."""
    channels = image_shape(settings)[2]
    parts: dict[Part, Chosen] = {}
    for number, part in enumerate(PARTS):
        halves = [
            np.broadcast_to(half, (*half.shape[:3], channels))  # grey: three equal channels
            for half in (getattr(left, part), getattr(right, part))
        ]
        # Each part has a seed of its own, which no part of another pairing has.
        chosen = _paired(len(halves[0]), len(halves[1]), 3 * settings.pairing_seed + number)
        pairs = np.concatenate(
            [half[indices] for half, indices in zip(halves, chosen, strict=True)], axis=2
        )
        parts[part] = (pairs, range(len(pairs)))
    of_halves = {
        f"{side} {label}": words
        for side, half in (("left", left), ("right", right))
        for label, words in half.notes.items()
    }
    _write_parts(folder, parts, settings.train_fraction, {}, {}, of_halves)


def _paired(left: int, right: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs the images of two sources at random; each image of the larger one occurs once.

    Returns:
        For each pair, the index of its left and of its right image.

    >>> left, right = _paired(2, 5, seed=0)
    >>> sorted(left[:2].tolist()), right.tolist()
    ([0, 1], [0, 1, 2, 3, 4])
    """
    shorter, longer = sorted((left, right))
    generator = torch.Generator().manual_seed(seed)
    rounds = [torch.randperm(shorter, generator=generator) for _ in range(-(-longer // shorter))]
    turns, order = torch.cat(rounds)[:longer].numpy(), np.arange(longer)
    return (turns, order) if left < right else (order, turns)
