"""Images in three parts: loaded, fitted to one size, and divided.

All images of a corpus have one size. Parts that are given are used as they are. Parts that are not
given are divided off the training images by a hash of their pixels: an image falls into the same
part on every machine, and an image that occurs twice is never in two parts. Patches of photographs
are divided by regions of the photographs, so that patches that overlap are in the same part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from headwise.data.division import PARTS, Part, divide, sample
from headwise.data.settings import given_parts, in_test_set
from headwise.data.sources import CorpusError, file_in_words, part_in_words
from headwise.tasks.image.reading import (
    Limits,
    read_digits,
    read_hub_images,
    read_idx,
    read_image_folder,
    read_patches,
)
from headwise.tasks.image.settings import (
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


@dataclass(frozen=True)
class ImageCorpus:
    """Images in three parts, none of them empty.

    Attributes:
        train, validation, test: bytes, `(images, height, width, channels)`.
        notes: facts about the images, from a label to a text.
        tests: the images of each further test set by its name.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: dict[str, str]
    tests: dict[str, np.ndarray] = field(default_factory=dict)


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
        return _load_pairs(settings)
    broken: list[str] = []
    origins: dict[str, str] = {}
    if isinstance(settings, PhotographsImages):
        patches = read_patches(settings.patch, *settings.fractions())
        parts = {part: _joined(iter(patches[part]), settings) for part in PARTS}
        origin = (
            f"{settings.patch}×{settings.patch} patches of the photographs of {_scikit_learn()}"
        )
    else:
        given, origins, origin = _read_parts(settings, broken)
        parts = _divide(given, settings)
    for part in PARTS:
        if not len(parts[part]):
            sizes = ", ".join(f"{name} {len(parts[name]):,}" for name in PARTS)
            raise CorpusError(
                f"the {part} part has 0 images ({sizes}; {origin}), expected at least one; give "
                "more images, or a source of its own for the part"
            )
    parts["train"], sampled = _sampled(parts["train"], settings.train_fraction)
    height, width, _ = image_shape(settings)
    notes = {"images": f"{origin}; {height}×{width} pixels"}
    trained = {_digest(image) for image in parts["train"]}
    for part in PARTS:
        notes[part] = _note(parts[part], origins.get(part, ""), () if part == "train" else trained)
    tests = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            tests[name], origin = _read_test(test, settings, broken)
        notes[f"test {name}"] = _note(tests[name], origin, trained)
    if broken:
        notes["skipped"] = f"{len(broken):,} images that cannot be read: {broken[0]}" + (
            ", ..." if len(broken) > 1 else ""
        )
    return ImageCorpus(parts["train"], parts["validation"], parts["test"], notes | sampled, tests)


def digest_images(images: np.ndarray) -> str:
    """Returns a hash of the images of one part, after they were fitted to their size."""
    digest = hashlib.sha256(str(images.shape).encode())
    digest.update(images.tobytes())
    return digest.hexdigest()


def _sampled(images: np.ndarray, fraction: float) -> tuple[np.ndarray, dict[str, str]]:
    """Returns a sample of the training images, chosen by their pixels, and a note on it."""
    chosen, note = sample(
        range(len(images)), lambda index: _digest(images[index]).hex(), fraction, "images"
    )
    return (images[chosen] if note else images), note


def _note(images: np.ndarray, origin: str, trained: Collection[bytes] = ()) -> str:
    """Returns what the notes say of a part: its size, where it comes from, and a hash.

    Args:
        images: of the part.
        origin: folder, file or split of the part; empty for a share of the training images.
        trained: hashes of the training images, if those that the part repeats are counted.
    """
    size = f"{len(images):,} images"
    repeated = sum(_digest(image) in trained for image in images) if trained else 0
    if repeated:
        size += f", of which {repeated:,} are also in the training part"
    return part_in_words(size, origin, "pixels", digest_images(images))


def _digest(image: np.ndarray) -> bytes:
    return hashlib.sha256(image.tobytes()).digest()


def _scikit_learn() -> str:
    return f"scikit-learn {metadata.version('scikit-learn')}"


def _read_parts(
    settings: DigitsImages | FolderImages | IdxImages | HubImages, broken: list[str]
) -> tuple[dict[Part, np.ndarray], dict[str, str], str]:
    """Reads the images of a source: training, validation and test part, as far as it has them.

    Returns:
        The parts, the file or split of each in words, and words on where all of them come from.
    """
    if isinstance(settings, DigitsImages):
        return {"train": _joined(read_digits(), settings)}, {}, f"digits of {_scikit_learn()}"
    if isinstance(settings, HubImages):
        splits = settings.splits()
        given = {
            part: _joined(_read_split(settings, split, broken, _limits(settings)), settings)
            for part, split in splits.items()
        }
        return given, {part: f"split {split}" for part, split in splits.items()}, settings.origin
    paths = given_parts(settings)
    given = {
        part: _joined(_read_path(path, settings.corpus, broken, _limits(settings)), settings)
        for part, path in paths.items()
    }
    origins: dict[str, str] = {part: _path_in_words(path) for part, path in paths.items()}
    return given, origins, f"{settings.corpus} {settings.train.name}"


def _read_test(
    test: FolderTest | IdxTest | HubImagesTest, settings: Source, broken: list[str]
) -> tuple[np.ndarray, str]:
    """Reads a further test set; returns its images, and words on where they come from."""
    if isinstance(test, HubImagesTest):
        pictures = _read_split(test, test.split, broken, _limits(settings))
        return _joined(pictures, settings), test.origin
    pictures = _read_path(test.path, test.corpus, broken, _limits(settings))
    return _joined(pictures, settings), _path_in_words(test.path)


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


def _joined(pictures: Iterator[Image.Image], settings: Source) -> np.ndarray:
    """Fits images to one size and joins them, `(images, height, width, channels)`."""
    arrays = [fitted(picture, image_shape(settings)) for picture in pictures]
    return np.stack(arrays) if arrays else np.empty([0, *image_shape(settings)], np.uint8)


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


def _divide(given: dict[Part, np.ndarray], settings: Source) -> dict[Part, np.ndarray]:
    """Returns the given parts, and the missing ones, which are split off the training images."""
    fractions = settings.fractions(given)
    if not any(fractions):
        return given
    hashes = [hashlib.sha256(image.tobytes()).hexdigest() for image in given["train"]]
    part_of_hash = divide(hashes, *fractions)
    falls_into = np.array([part_of_hash[each] for each in hashes])
    divided = {part: given["train"][falls_into == part] for part in PARTS}
    return {**divided, **{part: given[part] for part in given if part != "train"}}


# --- pairs ------------------------------------------------------------------------------------


def _load_pairs(settings: PairImages) -> ImageCorpus:
    left, right = load_images(settings.left), load_images(settings.right)
    channels = image_shape(settings)[2]
    pairs = {}
    for number, part in enumerate(PARTS):
        halves = [
            np.broadcast_to(half, (*half.shape[:3], channels))  # grey: three equal channels
            for half in (getattr(left, part), getattr(right, part))
        ]
        # Each part has a seed of its own, which no part of another pairing has.
        chosen = _paired(len(halves[0]), len(halves[1]), 3 * settings.pairing_seed + number)
        pairs[part] = np.concatenate(
            [half[indices] for half, indices in zip(halves, chosen, strict=True)], axis=2
        )
    pairs["train"], sampled = _sampled(pairs["train"], settings.train_fraction)
    notes: dict[str, str] = {part: _note(pairs[part], "") for part in PARTS} | sampled
    for side, half in (("left", left), ("right", right)):
        notes |= {f"{side} {label}": words for label, words in half.notes.items()}
    return ImageCorpus(pairs["train"], pairs["validation"], pairs["test"], notes)


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
