"""Images in three parts: loaded, fitted to one size, divided, and encoded as colour ids.

All images of a corpus have one size. Parts that are given are used as they are. Parts that are not
given are divided off the training images by a hash of their pixels: an image falls into the same
part on every machine, and an image that occurs twice is never in two parts. Patches of photographs
are divided by regions of the photographs, so that patches that overlap are in the same part.

The images stand on the disk, in the cache, where every run finds them (`data.store`).
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from headwise.data.corpora import (
    Corpus,
    Source,
    corpus_fields,
    given_sources,
    open_corpus,
    read_sources,
)
from headwise.data.division import (
    PARTS,
    SAMPLE,
    Hashes,
    Part,
    hashes,
    parts_of,
    sample_in_words,
    sampled,
)
from headwise.data.images.palette import Raster
from headwise.data.images.reading import built_in, image_source
from headwise.data.images.settings import (
    FileImages,
    HubImages,
    ImageSettings,
    OneSource,
    PairImages,
    image_shape,
)
from headwise.data.parts import Facts, PartFacts, write_facts
from headwise.data.rows import growing, mapped, pieces
from headwise.data.sources import CorpusError, skipped_in_words
from headwise.data.store import stored


class ImagePart(NamedTuple):
    """The images of a part.

    Attributes:
        pixels: bytes, `(images, height, width, channels)`.
        digest: a hash of them.
    """

    pixels: np.ndarray
    digest: str


ImageCorpus = Corpus[ImagePart]  # the images of three parts and of further test sets


def load_images(settings: ImageSettings) -> ImageCorpus:
    """Reads images, skips those that cannot be read, and divides off the parts that are not given.

    Raises:
        CorpusError: if the data cannot be read or are too few for three parts. The message names
            the file or the field and says how to mend it.

    Example:
        >>> from headwise.data.images.settings import DigitsImages
        >>> images = load_images(DigitsImages())
        >>> images.train.pixels.shape, images.validation.pixels.shape, images.test.pixels.shape
        ((1437, 8, 8, 1), (180, 8, 8, 1), (180, 8, 8, 1))
    """
    if isinstance(settings, PairImages):
        left, right = load_images(settings.left), load_images(settings.right)
        made_of = [settings.model_dump_json(), left.digest, right.digest]
        make_pairs = partial(_make_pairs, settings, left, right)
        fields, _ = open_corpus("images", made_of, make_pairs, _open)
        return ImageCorpus(**fields)
    skipped: list[str] = []  # receives why images are left out while they are read
    source = partial(image_source, settings, skipped)
    sources = built_in(settings) or given_sources(settings, source)
    make = partial(_make, settings, sources, skipped)
    make_test = partial(_make_test, settings, skipped)
    fields = corpus_fields("images", settings, sources, source, make, make_test, _open)
    return ImageCorpus(**fields)


def fitted(picture: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the middle of an image in a size and a mode.

    Args:
        picture: the image.
        shape: height, width and channels: 3 for RGB and 1 for levels of grey.
    """
    height, width, channels = shape
    if picture.mode.startswith("I"):  # 16 bits: convert would cut values off at 255
        levels, hidden = np.asarray(picture), picture.info.get("transparency", -1)
        picture = Image.fromarray(np.where(levels == hidden, 255, levels >> 8).astype(np.uint8))
    if picture.has_transparency_data:  # transparent pixels have a colour that nobody sees
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    picture = picture.convert("RGB" if channels == 3 else "L")
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(shape)


# --- images in parts --------------------------------------------------------------------------


def _make(
    settings: OneSource, sources: Mapping[str, Source], skipped: list[str], folder: Path
) -> None:
    origin = settings.origin if isinstance(settings, HubImages) else None
    if isinstance(settings, FileImages):
        origin = f"{settings.corpus} {settings.train.name}"
    pictures, words = read_sources(sources, origin)
    shape = image_shape(settings)
    read = {part: _fitted_all(of_part, shape) for part, of_part in pictures.items()}
    falls_into = parts_of(_keys(read["train"]), *settings.fractions(read))
    parts: dict[Part, np.ndarray] = {
        part: read[part]
        if part in read and part != "train"
        else read["train"][falls_into == number]
        for number, part in enumerate(PARTS)
    }
    origin = words.pop("corpus")
    for part, images in parts.items():
        if not len(images):
            counts = ", ".join(f"{name} {len(found):,}" for name, found in parts.items())
            raise CorpusError(
                f"the {part} part has 0 images ({counts}; {origin}), expected at least one; give "
                "more images, or a source of its own for the part"
            )
    facts = _write_parts(folder, parts, settings.train_fraction, words)
    facts.notes = {"images": f"{origin}; {shape[0]}×{shape[1]} pixels", **facts.notes}
    if skipped:
        facts.notes["skipped"] = skipped_in_words(skipped)
    write_facts(folder, facts)


def _make_test(
    settings: OneSource, skipped: list[str], corpus: Path, source: Source, folder: Path
) -> None:
    """Writes the images of a further test set to a folder; `corpus` is that of the parts."""
    skipped.clear()
    pictures, words = source.read()
    images = _fitted_all(pictures, image_shape(settings))
    part = _write_part(folder, "test", images, hashlib.sha256())
    part.trained = int(np.isin(_keys(images), _keys(_open(corpus, "train").pixels)).sum())
    note = part.note("images", "pixels", words)
    if skipped:
        note += f"; skipped: {skipped_in_words(skipped)}"
    write_facts(folder, Facts(parts={"test": part}, notes={"test": note}))


def _fitted_all(pictures: Iterable[Image.Image], shape: tuple[int, int, int]) -> np.ndarray:
    """Returns images that are fitted to one size, `(images, height, width, channels)`."""
    each = (fitted(picture, shape) for picture in pictures)
    return np.fromiter(each, np.dtype((np.uint8, shape)))


def _write_parts(
    folder: Path, parts: dict[Part, np.ndarray], train_fraction: float, origins: Mapping[str, str]
) -> Facts:
    """Writes the images of each part; returns what is known of them."""
    sample = {}
    if train_fraction < 1.0:
        kept = sampled(_keys(parts["train"], SAMPLE), train_fraction)
        sample = sample_in_words(int(kept.sum()), len(kept), "images")
        parts["train"] = parts["train"][kept]
    trained = _keys(parts["train"])
    facts, digest = Facts(parts={}), hashlib.sha256()
    for part, images in parts.items():
        found = _write_part(folder, part, images, digest)
        if part != "train":
            found.trained = int(np.isin(_keys(images), trained).sum())
        facts.parts[part] = found
        facts.notes[part] = found.note("images", "pixels", origins.get(part, ""))
    facts.digest = digest.hexdigest()
    facts.notes |= sample
    return facts


def _write_part(folder: Path, part: str, images: np.ndarray, corpus: "hashlib._Hash") -> PartFacts:
    """Writes the images of a part, and adds them to the hash of the corpus."""
    digest = hashlib.sha256(str(images.shape).encode())
    corpus.update(f"{part} {images.shape}".encode())
    for each in (digest, corpus):
        each.update(images.data)
    np.save(folder / f"{part}.npy", images)
    return PartFacts(number=len(images), digest=digest.hexdigest())


def _open(folder: Path, name: str, digest: str = "") -> ImagePart:
    return ImagePart(mapped(folder / f"{name}.npy"), digest)


def _keys(images: np.ndarray, salt: bytes = b"") -> Hashes:
    """Returns a hash of the pixels of each image, by which it is divided and known again."""
    return hashes((hashlib.sha256(image.tobytes()).hexdigest() for image in images), salt)


# --- pairs ------------------------------------------------------------------------------------


def _make_pairs(settings: PairImages, left: ImageCorpus, right: ImageCorpus, folder: Path) -> None:
    """Puts images of two sources side by side, and writes them to a folder."""
    channels = image_shape(settings)[2]
    parts: dict[Part, np.ndarray] = {}
    for number, part in enumerate(PARTS):
        halves = [
            np.broadcast_to(half, (*half.shape[:3], channels))  # grey: three equal channels
            for half in (getattr(left, part).pixels, getattr(right, part).pixels)
        ]
        # Each part has a seed of its own, which no part of another pairing has.
        indices = _paired(len(halves[0]), len(halves[1]), 3 * settings.pairing_seed + number)
        chosen = [half[some] for half, some in zip(halves, indices, strict=True)]
        parts[part] = np.concatenate(chosen, axis=2)
    facts = _write_parts(folder, parts, settings.train_fraction, {})
    for side, half in (("left", left), ("right", right)):
        facts.notes |= {f"{side} {label}": words for label, words in half.notes.items()}
    write_facts(folder, facts)


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


# --- images as sequences ----------------------------------------------------------------------


class ImageDataset(Dataset[Tensor]):
    """Images as sequences of colour ids, each behind the id that begins an image.

    Args:
        folder: the folder of the cache that holds the ids, see `of`.
        digest: a hash of the images.

    Attributes:
        ids: the sequences, `(images, pixels + 1)`.
        lengths: the length of each sequence; all are equal.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder = folder
        self.digest = digest
        self.ids = torch.from_numpy(mapped(folder / "ids.npy"))
        self.lengths = np.full(len(self.ids), self.ids.size(1))

    @classmethod
    def of(cls, images: ImagePart, raster: Raster) -> Self:
        """Encodes the images of a part into the cache, or opens what is there."""

        def make(folder: Path) -> None:
            # int32 takes half the memory of int64; each image is cast when it is asked for.
            with growing(folder / "ids.npy", np.int32, (len(raster) + 1,)) as add:
                for some in pieces(images.pixels):
                    first = np.full((len(some), 1), raster.bos_token_id)
                    add(np.concatenate([first, raster.encode(some)], axis=1))

        made_of = [images.digest, raster.colors.tolist()]
        return cls(stored("colours", made_of, make), images.digest)

    def __reduce__(self) -> Any:
        return type(self), (self.folder, self.digest)  # a worker opens the file itself

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Tensor:
        return self.ids[index].long()
