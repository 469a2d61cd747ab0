"""Texts packed into one row, one behind another, and the same texts in rows of their own."""

import torch
from torch import Tensor


class PackedTexts:
    """Takes packed texts apart, so that each has a row of its own, and puts them together again.

    What a system computes of a padded batch is what it computes of each sequence alone. So is then
    what it computes of packed texts: attention, gates, memories and losses.

    Args:
        starts: boolean `(batch, time)`, `True` where a text begins; one begins in each row at 0.

    Attributes:
        padding: boolean `(texts, longest text)`, `True` behind the end of a text.

    Example:
        >>> texts = PackedTexts(torch.tensor([[True, False, True, False, False]]))
        >>> texts.padding.int().tolist()
        [[0, 0, 1], [0, 0, 0]]
        >>> apart = texts.apart(torch.tensor([[5, 6, 7, 8, 9]]))
        >>> apart.tolist(), texts.together(apart).tolist()
        ([[5, 6, 0], [7, 8, 9]], [[5, 6, 7, 8, 9]])
    """

    def __init__(self, starts: Tensor) -> None:
        starts = starts.clone()
        starts[:, :1] = True
        flat = starts.flatten()
        first = flat.nonzero().squeeze(1)  # where each text begins in all rows
        number = flat.cumsum(0) - 1  # the text of each position
        place = torch.arange(len(flat), device=flat.device) - first[number]
        self.number, self.place = number.view_as(starts), place.view_as(starts)
        self.padding = flat.new_ones(len(first), int(place.max()) + 1)
        self.padding[self.number, self.place] = False

    def apart(self, x: Tensor) -> Tensor:
        """`(batch, time, ...)` to `(texts, longest text, ...)`, zeros behind the end of a text."""
        rows = x.new_zeros(*self.padding.shape, *x.shape[2:])
        return rows.index_put((self.number, self.place), x)

    def together(self, x: Tensor) -> Tensor:
        """`(texts, longest text, ...)` to `(batch, time, ...)`."""
        return x[self.number, self.place]


def packed_by_positions(position_ids: Tensor) -> PackedTexts | None:
    """Returns the texts of rows whose positions `(batch, time)` do not go on by one.

    None if each row holds a single one. The host waits for the device to know.
    """
    return packed_from(position_ids.diff(dim=1) != 1)


def packed_from(later: Tensor) -> PackedTexts | None:
    """The texts that begin where `later`, `(batch, time - 1)`, is `True`; None if none is."""
    return PackedTexts(torch.nn.functional.pad(later, (1, 0), value=True)) if later.any() else None
