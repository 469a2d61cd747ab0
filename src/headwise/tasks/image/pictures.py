"""Images: settings, reading, and a division into parts that leaks nothing.

All images of a data set have one size. Parts that are given are taken as they are. Parts that are
not given are divided off the training images by a hash of the pixels: an image falls into the same
part on every machine, and one that occurs twice never lands in two parts. Patches of a photograph
are divided by regions of it, so that what overlaps stays together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from headwise.tasks.image.image_sources import (
    photograph_patches,
    read_digits,
    read_hub_images,
    read_idx,
    read_image_folder,
)
from headwise.tasks.parts import PARTS, DividedSettings, HubSettings, Part, given_parts, part_of
from headwise.tasks.sources import CorpusError

# --- settings ---------------------------------------------------------------------------------


class _Images(DividedSettings):
    """What all sources have in common."""

    size: int = Field(32, ge=1, description="pixels of a side; images are cut square and resized")
    mode: Literal["rgb", "grey"] = Field("rgb", description="colours, or levels of grey")


class DigitsImages(_Images):
    """Scikit-learn's 1,797 handwritten digits of 8×8 pixels in 17 levels of grey."""

    corpus: Literal["digits"] = Field("digits", description="scikit-learn's digits")
    size: int = Field(8, ge=1, description="pixels of a side; images are cut square and resized")
    mode: Literal["rgb", "grey"] = Field("grey", description="colours, or levels of grey")


class PhotographsImages(_Images):
    """Square patches of scikit-learn's two sample photographs, of a temple and of a flower."""

    corpus: Literal["photographs"] = Field(
        "photographs", description="patches of scikit-learn's sample photographs"
    )
    size: int = Field(8, ge=1, description="pixels of a side; images are cut square and resized")
    patch: int = Field(
        16, ge=1, le=64, description="pixels of a side that are cut out and resized to size"
    )


class FolderImages(_Images):
    """Folders of image files, in folders of their own (classes) or not, or tar files of such."""

    corpus: Literal["folder"] = Field("folder", description="folders of images")
    train: Path = Field(description="folder, or tar file of one, of the training images")
    validation: Path | None = Field(
        None, description="likewise; without it, a share of the training images"
    )
    test: Path | None = Field(
        None, description="likewise; without it, a share of the training images"
    )


class IdxImages(_Images):
    """IDX files, as MNIST comes in."""

    corpus: Literal["idx"] = Field("idx", description="IDX files, the format of MNIST")
    size: int = Field(28, ge=1, description="pixels of a side; images are cut square and resized")
    mode: Literal["rgb", "grey"] = Field("grey", description="colours, or levels of grey")
    train: Path = Field(description="train-images-idx3-ubyte, gzip or not")
    validation: Path | None = Field(
        None, description="likewise; without it, a share of the training images"
    )
    test: Path | None = Field(
        None, description="t10k-images-idx3-ubyte; without it, a share of the training images"
    )


class HubImages(_Images, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset")
    field: str = Field("image", description="column of the images (CIFAR-10: img)")
    validation_split: str | None = Field(
        None, description="split to validate on; null takes a share of the training split"
    )


Source = Annotated[
    DigitsImages | PhotographsImages | FolderImages | IdxImages | HubImages,
    Field(discriminator="corpus"),
]


class PairImages(BaseModel):
    """Images whose left half is of one source and whose right half is of another.

    Image n of the larger source stands beside an image of the other drawn for n once and for all;
    the other's images take turns in shuffled rounds. Parts are made before pairs: what stands in a
    training image is in no other part.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: Literal["pair"] = Field("pair", description="two sources side by side")
    left: Source = Field(
        default_factory=lambda: DigitsImages(), description="source of the left halves"
    )
    right: Source = Field(
        default_factory=lambda: PhotographsImages(), description="source of the right halves"
    )
    pairing_seed: int = Field(1, ge=0, description="of which image stands beside which")

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.left.size != self.right.size:
            raise ValueError(
                f"left.size is {self.left.size}, but right.size is {self.right.size}: halves "
                f"stand side by side; set both to one size"
            )
        return self


ImageSettings = Annotated[
    DigitsImages | PhotographsImages | FolderImages | IdxImages | HubImages | PairImages,
    Field(discriminator="corpus"),
]


def image_shape(settings: ImageSettings) -> tuple[int, int, int]:
    """Height, width and channels of the images that settings ask for.

    >>> image_shape(PairImages())
    (8, 16, 3)
    """
    if not isinstance(settings, PairImages):
        return _shape(settings)
    (height, left, channels), (_, right, others) = _shape(settings.left), _shape(settings.right)
    return height, left + right, max(channels, others)


def _shape(settings: _Images) -> tuple[int, int, int]:
    return settings.size, settings.size, 3 if settings.mode == "rgb" else 1


# --- the parts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageParts:
    """Images in three parts, none of them empty: bytes, `(images, height, width, channels)`."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: dict[str, str]


def load_images(settings: ImageSettings) -> ImageParts:
    """Read images, skip what is broken, and divide off the parts that are not given.

    Raises:
        CorpusError: data that cannot be read, or too little to fill the three parts. The message
            names the file or field and says how to mend it.

    Example:
        >>> images = load_images(DigitsImages())
        >>> images.train.shape[1:], images.train.dtype
        ((8, 8, 1), dtype('uint8'))
    """
    if isinstance(settings, PairImages):
        return _load_pairs(settings)
    broken: list[str] = []
    if isinstance(settings, PhotographsImages):
        patches = photograph_patches(settings.patch, *settings.fractions())
        parts = {part: _joined(iter(patches[part]), settings) for part in PARTS}
        origin = f"{settings.patch}×{settings.patch} patches of scikit-learn's photographs"
    else:
        given, origin = _given_parts(settings, broken)
        parts = _divide(given, settings)
    for part in PARTS:
        if not len(parts[part]):
            sizes = ", ".join(f"{name} {len(parts[name]):,}" for name in PARTS)
            raise CorpusError(
                f"images: none for the {part} part ({sizes}; {origin}). Give more images, a "
                "larger validation_fraction or test_fraction, or a source of its own for the part."
            )
    height, width, _ = image_shape(settings)
    notes = {
        "images": f"{origin}; {height}×{width} pixels",
        "parts": ", ".join(f"{part} {len(parts[part]):,}" for part in PARTS),
    }
    if broken:
        notes["skipped"] = f"{len(broken):,} images that cannot be read: {broken[0]}" + (
            ", ..." if len(broken) > 1 else ""
        )
    return ImageParts(parts["train"], parts["validation"], parts["test"], notes)


def _given_parts(
    settings: DigitsImages | FolderImages | IdxImages | HubImages, broken: list[str]
) -> tuple[dict[Part, np.ndarray], str]:
    """What the source has, part by part, and where it comes from in words."""
    if isinstance(settings, DigitsImages):
        return {"train": _joined(read_digits(), settings)}, "scikit-learn's digits"
    if isinstance(settings, HubImages):
        name, field, version = settings.name, settings.field, (settings.config, settings.revision)
        given = {
            part: _joined(read_hub_images(name, split, field, broken, *version), settings)
            for part, split in settings.splits().items()
        }
        return given, settings.origin
    read: Callable[[Path], Iterator[Image.Image]] = read_idx
    if isinstance(settings, FolderImages):
        read = partial(read_image_folder, broken=broken)
    given = {
        part: _joined(read(path.expanduser()), settings)
        for part, path in given_parts(settings).items()
    }
    return given, f"{settings.corpus} {settings.train.name}"


def _joined(pictures: Iterator[Image.Image], settings: _Images) -> np.ndarray:
    """Images of one size in one array, `(images, height, width, channels)`."""
    arrays = [_fitted(picture, settings) for picture in pictures]
    return np.stack(arrays) if arrays else np.empty([0, *_shape(settings)], np.uint8)


def _fitted(picture: Image.Image, settings: _Images) -> np.ndarray:
    """The middle square of an image in the size and mode asked for."""
    if picture.has_transparency_data:  # what is transparent has a colour, but not one to be seen
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    if picture.mode.startswith("I;16"):  # convert would cut values off at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    picture = picture.convert("RGB" if settings.mode == "rgb" else "L")
    size = (settings.size, settings.size)
    if picture.size != size:
        picture = ImageOps.fit(picture, size, Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(_shape(settings))


def _divide(given: dict[Part, np.ndarray], settings: _Images) -> dict[Part, np.ndarray]:
    """The given parts, and the missing ones divided off the training images."""
    fractions = settings.fractions(given)
    if not any(fractions):
        return given
    hashes = [hashlib.sha256(image.tobytes()).hexdigest() for image in given["train"]]
    falls_into = np.array([part_of(each, *fractions) for each in hashes])
    divided = {part: given["train"][falls_into == part] for part in PARTS}
    return {**divided, **{part: given[part] for part in given if part != "train"}}


# --- pairs ------------------------------------------------------------------------------------


def _load_pairs(settings: PairImages) -> ImageParts:
    left, right = load_images(settings.left), load_images(settings.right)
    channels = image_shape(settings)[2]
    pairs = {}
    for number, part in enumerate(PARTS):
        halves = [
            np.broadcast_to(half, (*half.shape[:3], channels))  # grey is all three colours alike
            for half in (getattr(left, part), getattr(right, part))
        ]
        # A seed for each part, and no part's seed is that of another pairing's part.
        chosen = _paired(len(halves[0]), len(halves[1]), 3 * settings.pairing_seed + number)
        pairs[part] = np.concatenate(
            [half[indices] for half, indices in zip(halves, chosen, strict=True)], axis=2
        )
    notes = {"parts": ", ".join(f"{part} {len(pairs[part]):,}" for part in PARTS)}
    for side, half in (("left", left), ("right", right)):
        notes |= {f"{side} {label}": words for label, words in half.notes.items()}
    return ImageParts(pairs["train"], pairs["validation"], pairs["test"], notes)


def _paired(left: int, right: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which images of two sources of so many stand beside each other.

    >>> left, right = _paired(2, 5, seed=0)
    >>> sorted(left[:2].tolist()), right.tolist()
    ([0, 1], [0, 1, 2, 3, 4])
    """
    shorter, longer = sorted((left, right))
    generator = torch.Generator().manual_seed(seed)
    rounds = [torch.randperm(shorter, generator=generator) for _ in range(-(-longer // shorter))]
    turns, order = torch.cat(rounds)[:longer].numpy(), np.arange(longer)
    return (turns, order) if left < right else (order, turns)
