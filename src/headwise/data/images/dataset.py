"""Images as a data set of sequences of colour ids."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import Self

from headwise.data.images.corpus import ImagePart
from headwise.data.images.palette import Raster
from headwise.data.rows import growing, mapped, pieces
from headwise.data.store import stored


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
