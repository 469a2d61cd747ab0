"""Images as a data set of sequences of colour ids."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headwise.data.arrays import growing, mapped, pieces
from headwise.data.images.corpus import ImagePart
from headwise.data.images.palette import Raster
from headwise.data.store import stored


class ImageDataset(Dataset[Tensor]):
    """Images as sequences of colour ids, each behind the id that begins an image.

    Args:
        images: the images of a part, whose ids are found in the cache by their hash.
        raster: the palette, which makes sequences of images.

    Attributes:
        digest: a hash of the images.
        ids: the sequences, `(images, pixels + 1)`.
        lengths: the length of each sequence; all are equal.
    """

    def __init__(self, images: ImagePart, raster: Raster) -> None:
        def make(folder: Path) -> None:
            # int32 takes half the memory of int64; each image is cast when it is asked for.
            with growing(folder / "ids.npy", np.int32, (len(raster) + 1,)) as add:
                for some in pieces(images.pixels):
                    first = np.full((len(some), 1), raster.bos_token_id)
                    add(np.concatenate([first, raster.encode(some)], axis=1))

        folder = stored("colours", [images.digest, raster.colors.tolist()], make)
        self.digest = images.digest
        self.ids = torch.from_numpy(mapped(folder / "ids.npy"))
        self.lengths = np.full(len(self.ids), self.ids.size(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Tensor:
        return self.ids[index].long()
