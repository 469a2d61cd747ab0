"""What stands at the positions of an image: colours, and in which part of the image they are."""

import numpy as np
import torch
from torch import Tensor

from headwise.data.images.palette import Raster
from headwise.tasks.positions import Positions

BEGIN = "<bos>"
SHADES = ["very dark", "dark", "medium", "light", "very light"]  # fifths of 0 to 255
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, as in ITU-R BT.601


def pixel_positions(input_ids: Tensor, raster: Raster) -> Positions:
    """Returns the colours that a model reads, behind the id that begins an image.

    The labels of a pixel are `side` (the left or the right half of the image), `height` (its upper
    or lower half) and `brightness`; `predicted side` is that of the pixel behind it, which the
    model predicts there. The first position reads no pixel, and the last predicts none.

    Args:
        input_ids: ids of colours, `(batch, 1 + pixels)`, or the beginning of these.
        raster: palette and size of the images.

    Example:
        >>> raster = Raster(1, 2, np.array([[0], [255]], np.uint8))
        >>> found = pixel_positions(torch.tensor([[2, 1, 0]]), raster)
        >>> [found.names[number] for number in found.tokens[0].tolist()]
        ['<bos>', '#ffffff', '#000000']
        >>> found.classes["side"], found.classes["predicted side"]
        (tensor([[-1,  0,  1]]), tensor([[ 0,  1, -1]]))
    """
    device = input_ids.device
    pixels = torch.arange(input_ids.size(1), device=device) - 1  # -1 where no pixel is read
    row, column = pixels // raster.width, pixels % raster.width
    side = _for_all((column >= raster.width // 2).long(), pixels, input_ids)
    height = (row >= raster.height // 2).long()
    shades = torch.from_numpy(_shades(raster.colors)).to(device)
    brightness = torch.cat([shades, shades.new_tensor([-1])])[input_ids]  # bos is behind the rest
    classes = {"brightness": (brightness, SHADES)}
    if raster.height > 1:
        classes = {"height": (_for_all(height, pixels, input_ids), ["upper", "lower"]), **classes}
    if raster.width > 1:
        nothing = side.new_full((len(side), 1), -1)
        predicted = torch.cat([side[:, 1:], nothing], dim=1)
        sides = ["left", "right"]
        classes = {"side": (side, sides), "predicted side": (predicted, sides), **classes}
    return Positions.of_tokens(input_ids, _names(raster), "colour", classes)


def _for_all(label: Tensor, pixels: Tensor, like: Tensor) -> Tensor:
    """The label of each position, `(time,)`, for all images of a batch, `(batch, time)`."""
    return label.masked_fill(pixels < 0, -1).expand_as(like)


def _shades(colors: np.ndarray) -> np.ndarray:
    """Returns the number of the fifth in which the brightness of each colour lies."""
    values = colors.astype(np.float64)
    brightness = values @ np.array(_LUMA) if values.shape[1] == 3 else values[:, 0]
    return (brightness * len(SHADES) / 256).astype(np.int64)


def _names(raster: Raster) -> dict[int, str]:
    colours = np.broadcast_to(raster.colors, (len(raster.colors), 3)).tolist()
    names = {number: f"#{r:02x}{g:02x}{b:02x}" for number, (r, g, b) in enumerate(colours)}
    return {**names, raster.bos_token_id: BEGIN}
