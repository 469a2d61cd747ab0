"""Images as a data set of sequences of colour ids."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class ImageDataset(Dataset[Tensor]):
    """Images as sequences of colour ids, each behind the id that begins an image.

    Args:
        ids: ids of the pixels' colours, `(images, pixels)`.
        bos_token_id: the id that stands before the first pixel.

    Attributes:
        ids: the sequences, `(images, pixels + 1)`.
        lengths: the length of each sequence; all are equal.
    """

    def __init__(self, ids: np.ndarray, bos_token_id: int) -> None:
        first = np.full((len(ids), 1), bos_token_id)
        # int32 takes half the memory of int64; each image is cast when it is asked for.
        self.ids = torch.from_numpy(np.concatenate([first, ids], axis=1).astype(np.int32))
        self.lengths = np.full(len(ids), self.ids.size(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Tensor:
        return self.ids[index].long()
