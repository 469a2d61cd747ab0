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
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from typing_extensions import Self

from headwise.data.arrays import growing, mapped, pieces
from headwise.data.division import PARTS, SAMPLE, hashes, parts_of, sample_in_words, sampled
from headwise.data.images.reading import (
    Limits,
    read_digits,
    read_hub_images,
    read_idx,
    read_image_folder,
    read_patches,
)
from headwise.data.images.settings import (
    DigitsImages,
    FolderImages,
    FolderTest,
    HubImages,
    HubImagesTest,
    IdxImages,
    IdxTest,
    ImageSettings,
    PairImages,
    PhotographsImages,
    Source,
    image_shape,
)
from headwise.data.settings import given_parts, in_test_set
from headwise.data.sources import CorpusError, file_in_words, hub_identity, part_in_words
from headwise.data.store import file_identity, stored

_FACTS = "facts.json"
Parts = dict[str, tuple[np.ndarray, np.ndarray]]  # images, and which of them a part has


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
    if isinstance(settings, PairImages):
        left, right = load_images(settings.left), load_images(settings.right)
        made_of = [settings.model_dump_json(), left.digest, right.digest]
        folder = stored("images", made_of, partial(_make_pairs, settings, left, right))
    else:
        made_of = [settings.model_dump_json(exclude={"tests"}), *_identities(settings)]
        folder = stored("images", made_of, partial(_make, settings))
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    corpus = ImageCorpus(
        *_open_parts(folder),
        notes=facts["notes"],
        digest=facts["digest"],
        digests=facts["digests"],
    )
    if isinstance(settings, PairImages):
        return corpus
    for name, test in settings.tests.items():
        with in_test_set(name):
            made_of = [folder.name, test.model_dump_json(), _identity(test)]
            found = stored("images", made_of, partial(_make_test, test, settings, corpus.train))
        facts = json.loads((found / _FACTS).read_text(encoding="utf-8"))
        corpus.tests[name] = mapped(found / "test.npy")
        corpus.digests[name] = facts["digest"]
        corpus.notes[f"test {name}"] = facts["note"]
    return corpus


# --- reading ----------------------------------------------------------------------------------


def _identities(settings: Source) -> list[str]:
    """Returns what tells the images from others, and from what stood in their place before."""
    if isinstance(settings, DigitsImages | PhotographsImages):
        return [_scikit_learn()]
    if isinstance(settings, HubImages):
        where = (settings.config, settings.revision)
        return [hub_identity(settings.name, split, *where) for split in settings.splits().values()]
    return [_path_identity(path) for path in given_parts(settings).values()]


def _identity(test: FolderTest | IdxTest | HubImagesTest) -> str:
    if isinstance(test, HubImagesTest):
        return hub_identity(test.name, test.split, test.config, test.revision)
    return _path_identity(test.path)


def _path_identity(path: Path) -> str:
    """Returns what tells a file, or all files of a folder, from others."""
    path = path.expanduser()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return hashlib.sha256("\n".join(map(file_identity, files)).encode()).hexdigest()


def _scikit_learn() -> str:
    return f"scikit-learn {metadata.version('scikit-learn')}"


def _read(
    settings: DigitsImages | FolderImages | IdxImages | HubImages, broken: list[str]
) -> tuple[dict[str, Iterator[Image.Image]], dict[str, str]]:
    """Returns the images of each part that is given, and words on the corpus and on each part."""
    if isinstance(settings, DigitsImages):
        return {"train": read_digits()}, {"corpus": f"digits of {_scikit_learn()}"}
    pictures: dict[str, Iterator[Image.Image]] = {}
    if isinstance(settings, HubImages):
        words = {"corpus": settings.origin}
        for part, split in settings.splits().items():
            pictures[part] = _read_split(settings, split, broken, _limits(settings))
            words[part] = f"split {split}"
        return pictures, words
    words = {"corpus": f"{settings.corpus} {settings.train.name}"}
    for part, path in given_parts(settings).items():
        pictures[part] = _read_path(path, settings.corpus, broken, _limits(settings))
        words[part] = _path_in_words(path) if path.expanduser().exists() else ""
    return pictures, words


def _read_split(
    settings: HubImages | HubImagesTest, split: str, broken: list[str], limits: Limits
) -> Iterator[Image.Image]:
    return read_hub_images(
        settings.name, split, settings.field, broken, limits, settings.config, settings.revision
    )


def _read_path(path: Path, corpus: str, broken: list[str], limits: Limits) -> Iterator[Image.Image]:
    path = path.expanduser()
    if corpus == "folder":
        return read_image_folder(path, broken, limits)
    return read_idx(path, limits)


def _limits(settings: Source) -> Limits:
    return Limits(settings.max_pixels, settings.max_bytes)


def _path_in_words(path: Path) -> str:
    return f"folder {path.name}" if path.expanduser().is_dir() else file_in_words(path)


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


# --- images in parts --------------------------------------------------------------------------


def _make(settings: Source, folder: Path) -> None:
    """Reads, fits and divides images, and writes them to a folder."""
    broken: list[str] = []
    height, width, _ = image_shape(settings)
    if isinstance(settings, PhotographsImages):
        patches = read_patches(settings.patch, *settings.fractions())
        pictures: dict[str, Iterator[Image.Image]] = {p: iter(patches[p]) for p in PARTS}
        origin = (
            f"{settings.patch}×{settings.patch} patches of the photographs of {_scikit_learn()}"
        )
        words = {"corpus": origin}
    else:
        pictures, words = _read(settings, broken)
    read = {part: _written(folder / f"{part}.read", pictures[part], settings) for part in pictures}
    train = _keys(read["train"])
    falls_into = np.zeros(len(train), np.int8)
    if any(fractions := settings.fractions(read)):
        falls_into = parts_of(hashes(train), *fractions)
    chosen = {part: np.ones(len(images), bool) for part, images in read.items()}
    for number, part in enumerate(PARTS):
        if part == "train" or part not in read:
            chosen[part] = falls_into == number
    sizes = {part: int(chosen[part].sum()) for part in PARTS}
    for part in PARTS:
        if not sizes[part]:
            counts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            raise CorpusError(
                f"the {part} part has 0 images ({counts}; {words['corpus']}), expected at least "
                "one; give more images, or a source of its own for the part"
            )
    notes = {"images": f"{words['corpus']}; {height}×{width} pixels"}
    parts: Parts = {p: (read.get(p, read["train"]), chosen[p]) for p in PARTS}
    _write_parts(folder, parts, settings.train_fraction, notes, words)
    for name in read:
        (folder / f"{name}.read").unlink()
    if broken:
        more = ", ..." if len(broken) > 1 else ""
        notes["skipped"] = f"{len(broken):,} images that cannot be read: {broken[0]}{more}"
    _write_facts(folder, notes)


def _make_test(
    test: FolderTest | IdxTest | HubImagesTest, settings: Source, train: np.ndarray, folder: Path
) -> None:
    """Writes the images of a further test set to a folder; `train` are those of the corpus."""
    broken: list[str] = []
    if isinstance(test, HubImagesTest):
        pictures, origin = _read_split(test, test.split, broken, _limits(settings)), test.origin
    else:
        pictures = _read_path(test.path, test.corpus, broken, _limits(settings))
        origin = _path_in_words(test.path)
    images = _written(folder / "test.npy", pictures, settings)
    note = _note(images, origin, set(_keys(train)))
    if broken:
        note += f"; skipped: {len(broken):,} images that cannot be read: {broken[0]}"
    facts = {"note": note, "digest": digest_images(images)}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _written(path: Path, pictures: Iterator[Image.Image], settings: Source) -> np.ndarray:
    """Fits images to one size and writes them; returns them as they stand on the disk."""
    shape = image_shape(settings)
    with growing(path, np.uint8, shape) as add:
        for picture in pictures:
            add(fitted(picture, shape)[None])
    return mapped(path)


def _write_parts(
    folder: Path,
    parts: Parts,
    train_fraction: float,
    notes: dict[str, str],
    words: dict[str, str],
) -> None:
    """Writes the images of each part, and notes on them.

    Args:
        folder: where to.
        parts: the images of each part.
        train_fraction: the share of the training images that is taken.
        notes: gets the notes.
        words: the folder, file or split of each part that is given.
    """
    images, chosen = parts["train"]
    sample: dict[str, str] = {}
    if train_fraction < 1.0:
        number = int(chosen.sum())
        found = hashes(
            (key for key, kept in zip(_keys(images), chosen, strict=True) if kept), SAMPLE
        )
        chosen[chosen] = sampled(found, train_fraction)
        sample = sample_in_words(int(chosen.sum()), number, "images")
    trained: Collection[str] = ()
    for part, (images, chosen) in parts.items():
        with growing(folder / f"{part}.npy", np.uint8, images.shape[1:]) as add:
            for some, kept in zip(pieces(images), pieces(chosen), strict=True):
                add(some[kept])
        images = mapped(folder / f"{part}.npy")
        notes[part] = _note(images, words.get(part, ""), trained)
        if part == "train":
            trained = set(_keys(images))
    notes |= sample


def _write_facts(folder: Path, notes: dict[str, str]) -> None:
    corpus = ImageCorpus.of(*_open_parts(folder), notes)
    facts = {"notes": notes, "digest": corpus.digest, "digests": corpus.digests}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _open_parts(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    train, validation, test = (mapped(folder / f"{part}.npy") for part in PARTS)
    return train, validation, test


def digest_images(images: np.ndarray) -> str:
    """Returns a hash of the images of one part, after they were fitted to their size."""
    digest = hashlib.sha256(str(images.shape).encode())
    for some in pieces(images):
        digest.update(some.tobytes())
    return digest.hexdigest()


def _note(images: np.ndarray, origin: str, trained: Collection[str] = ()) -> str:
    """Returns what the notes say of a part: its size, where it comes from, and a hash.

    Args:
        images: of the part.
        origin: folder, file or split of the part; empty for a share of the training images.
        trained: the keys of the training images, if those that the part repeats are counted.
    """
    size = f"{len(images):,} images"
    repeated = sum(key in trained for key in _keys(images)) if trained else 0
    if repeated:
        size += f", of which {repeated:,} are also in the training part"
    return part_in_words(size, origin, "pixels", digest_images(images))


def _keys(images: np.ndarray) -> list[str]:
    """Returns a hash of the pixels of each image, by which it is divided and known again."""
    return [hashlib.sha256(image.tobytes()).hexdigest() for image in images]


# --- pairs ------------------------------------------------------------------------------------


def _make_pairs(settings: PairImages, left: ImageCorpus, right: ImageCorpus, folder: Path) -> None:
    """Puts images of two sources side by side, and writes them to a folder."""
    channels = image_shape(settings)[2]
    parts: Parts = {}
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
        parts[part] = (pairs, np.ones(len(pairs), bool))
    notes: dict[str, str] = {}
    _write_parts(folder, parts, settings.train_fraction, notes, {})
    for side, half in (("left", left), ("right", right)):
        notes |= {f"{side} {label}": words for label, words in half.notes.items()}
    _write_facts(folder, notes)


def _paired(left: int, right: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs the images of two sources at random; each image of the larger one occurs once.

    Args:
        left, right: how many images the sources have.
        seed: seed of the order in which images of the smaller source are used.

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
