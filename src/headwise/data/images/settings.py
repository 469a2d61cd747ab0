"""Settings of the image data: which images a recipe reads, and in which size and mode."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headwise.data.settings import (
    TESTS,
    DividedSettings,
    HubSettings,
    HubTest,
    SampledSettings,
    ValidationSplit,
)
from headwise.recipes.settings import Name
from headwise.settings import LARGEST_SEED, FrozenSettings

Size = Annotated[
    int,
    Field(
        ge=1,
        le=4096,
        description="Height and width of the images in pixels. The largest square in the middle of "
        "an image is cut out and resized.",
    ),
]
Mode = Annotated[
    Literal["rgb", "grey"],
    Field(description="Mode of the images: `rgb` for three colour channels, `grey` for one."),
]


class FolderTest(FrozenSettings):
    """A further test set of image files in a folder or in a tar file."""

    corpus: Literal["folder"] = Field("folder", description="A folder or a tar file of images.")
    path: Path = Field(description="The folder or the file of the images.")


class IdxTest(FolderTest):
    """A further test set in an IDX file, the format of MNIST."""

    corpus: Literal["idx"] = "idx"  # type: ignore[assignment]
    """An IDX file, the format of MNIST."""


class HubImagesTest(HubTest):
    """A further test set that is a split of a Hugging Face dataset."""

    field: str = Field("image", description="The column that holds the images.")


ImageTest = FolderTest | IdxTest | HubImagesTest


class ImageData(DividedSettings):
    """Settings that all sources of images have in common."""

    key_of_tests = "path"

    tests: dict[Name, Annotated[ImageTest, Field(discriminator="corpus")]] = TESTS
    size: Size = 32
    mode: Mode = "rgb"
    max_pixels: int = Field(100_000_000, ge=1, le=10**12)
    """The most pixels that an image may have, before it is resized to `size`. A larger one is an
    error: a small file can hold an image that fills the memory."""
    max_bytes: int = Field(2**32, ge=1, le=2**50)
    """The most bytes that a file of an image, a member of a tar file, or an unpacked IDX file may
    have. A larger one is an error."""


class DigitsImages(ImageData):
    """The 1,797 handwritten digits of scikit-learn, 8×8 pixels in 17 levels of grey."""

    corpus: Literal["digits"] = "digits"
    """The handwritten digits of scikit-learn."""
    size: Size = 8
    mode: Mode = "grey"


class PhotographsImages(ImageData):
    """Square patches of the two sample photographs of scikit-learn, a temple and a flower."""

    corpus: Literal["photographs"] = "photographs"
    """Patches of the two sample photographs of scikit-learn."""
    size: Size = 8
    patch: int = Field(16, ge=1, le=64)
    """Height and width in pixels of a patch, before it is resized to `size`."""


HeldOut = Annotated[
    Path | None,
    Field(
        description="The images of this part (MNIST: t10k-images-idx3-ubyte). By default a share "
        "of the training images is taken."
    ),
]


class FileImages(ImageData):
    """Image files that are named part by part."""

    train: Path
    """The training images: a folder, a tar file of one, or an IDX file, compressed with gzip or not
    (MNIST: train-images-idx3-ubyte)."""
    validation: HeldOut = None
    test: HeldOut = None


class FolderImages(FileImages):
    """Image files in folders, with or without a subfolder for each class, or in tar files."""

    corpus: Literal["folder"] = Field("folder", description="Folders or tar files of images.")


class IdxImages(FileImages):
    """IDX files, the format of MNIST."""

    corpus: Literal["idx"] = Field("idx", description="IDX files, the format of MNIST.")
    size: Size = 28
    mode: Mode = "grey"


class HubImages(ImageData, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="A dataset of the Hugging Face hub.")
    field: str = Field("image", description="The column that holds the images (CIFAR-10: img).")
    validation_split: ValidationSplit = None


OneSource = DigitsImages | PhotographsImages | FolderImages | IdxImages | HubImages
_ByCorpus = Field(discriminator="corpus")


class PairImages(SampledSettings):
    """Images whose left half is an image of one source and whose right half is one of another.

    Each image of the larger source is paired with a random image of the smaller source, whose
    images are used in shuffled rounds. The pairs depend on `pairing_seed` alone. The sources are
    divided into parts before they are paired, so that no half of a training image occurs in
    another part.
    """

    corpus: Literal["pair"] = Field("pair", description="Images of two sources side by side.")
    left: Annotated[OneSource, _ByCorpus] = Field(default_factory=lambda: DigitsImages())
    """The source of the left halves."""
    right: Annotated[OneSource, _ByCorpus] = Field(default_factory=lambda: PhotographsImages())
    """The source of the right halves."""
    pairing_seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed that decides which images stand side by side."""

    @model_validator(mode="after")
    def _check_halves(self) -> Self:
        for side, half in (("left", self.left), ("right", self.right)):
            for key, default in (("tests", {}), ("train_fraction", 1.0)):
                if getattr(half, key) != default:
                    raise ValueError(
                        f"{side}.{key} is given, expected none: leave it out, since halves "
                        f"have no test sets of their own, and data.train_fraction is of pairs"
                    )
        if self.left.size != self.right.size:
            raise ValueError(
                f"left.size is {self.left.size} and right.size is {self.right.size}, expected "
                "equal sizes: the halves stand side by side; set both to one size"
            )
        return self


ImageSettings = Annotated[OneSource | PairImages, _ByCorpus]


def image_shape(settings: ImageSettings) -> tuple[int, int, int]:
    """Returns height, width and channels of the images that settings describe.

    >>> image_shape(PairImages())
    (8, 16, 3)
    """
    if isinstance(settings, PairImages):
        left, right = image_shape(settings.left), image_shape(settings.right)
        return left[0], left[1] + right[1], max(left[2], right[2])
    return settings.size, settings.size, 3 if settings.mode == "rgb" else 1
