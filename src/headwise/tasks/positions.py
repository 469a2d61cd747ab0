"""What stands at the positions of a batch, for analyses that ask which ones a head works on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from headwise.data.images.palette import Raster
from headwise.data.sound.spectrum import magnitude
from headwise.heads.system import System
from headwise.models.inspect import evaluating, record, systems
from headwise.ops.labels import IGNORED_LABEL


@torch.no_grad()
def decisions_by_position(model: nn.Module, **inputs: Tensor) -> list[tuple[System, Tensor]]:
    """What the systems of a model of one stack decide at each position, in evaluation.

    Systems that do not decide separately for each position are left out.

    Args:
        inputs: of the model; the first is `(batch, time, ...)`.

    Returns:
        Each system with its weights, `(batch, time, units)`.
    """
    shape = next(iter(inputs.values())).shape[:2]
    with evaluating(model), record(model) as decided:
        model(**inputs)
    made = ((systems(model)[path], routings[0].weights) for path, routings in decided.items())
    return [(system, x) for system, x in made if x.dim() == 3 and x.shape[:2] == shape]


@dataclass(frozen=True)
class Positions:
    """What stands at each position of one stack of a model.

    Attributes:
        shape: batch and time.
        tokens: `(batch, time)`, the number of what stands there: a token of a vocabulary, a colour
            of a palette; negative where there is none. None where nothing can be numbered.
        names: the name of each such number, as pages show it.
        word: what they are called, in the singular: token, colour.
        classes: name of a label to the class of each position, `(batch, time)`, or of each
            sequence, `(batch,)`, counted from 0, negative where there is none; and to the names of
            the classes.
        levels: name of a quantity to its value at each position, `(batch, time)`: the loudness of
            a frame.
    """

    shape: tuple[int, int]
    tokens: Tensor | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    word: str = "token"
    classes: Mapping[str, tuple[Tensor, list[str]]] = field(default_factory=dict)
    levels: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_tokens(
        cls,
        tokens: Tensor,
        names: Mapping[int, str],
        word: str,
        classes: Mapping[str, tuple[Tensor, list[str]]] | None = None,
    ) -> Self:
        """Returns the description of tokens, `(batch, time)`; see the class."""
        return cls((tokens.size(0), tokens.size(1)), tokens, names, word, classes or {})


# --- images -----------------------------------------------------------------------------------

_SHADES = ["very dark", "dark", "medium", "light", "very light"]  # fifths of 0 to 255
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
        >>> found.classes["side"]
        (tensor([[-1,  0,  1]]), ['left', 'right'])
        >>> found.classes["predicted side"]
        (tensor([[ 0,  1, -1]]), ['left', 'right'])
    """
    device = input_ids.device
    pixels = torch.arange(input_ids.size(1), device=device) - 1  # -1 where no pixel is read
    row, column = pixels // raster.width, pixels % raster.width
    side = _for_all((column >= raster.width // 2).long(), pixels, input_ids)
    height = (row >= raster.height // 2).long()
    shades = torch.from_numpy(_shades(raster.colors)).to(device)
    brightness = torch.cat([shades, shades.new_tensor([-1])])[input_ids]  # bos is behind the rest
    classes = {"brightness": (brightness, _SHADES)}
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
    return (brightness * len(_SHADES) / 256).astype(np.int64)


def _names(raster: Raster) -> dict[int, str]:
    colours = np.broadcast_to(raster.colors, (len(raster.colors), 3)).tolist()
    names = {number: f"#{r:02x}{g:02x}{b:02x}" for number, (r, g, b) in enumerate(colours)}
    return {**names, raster.bos_token_id: "<bos>"}


# --- speech -----------------------------------------------------------------------------------

_STEP = 6.0  # decibels of a class of loudness
_LOUDNESS = ["0 to 6", "6 to 12", "12 to 18", "18 to 24", "24 or more"]
# Frames further below the loudest hold no speech, as in the measure of intelligibility STOI:
# Taal et al. 2011, https://doi.org/10.1109/TASL.2011.2114881.
_SPEECH_RANGE = 40.0


def frame_positions(inputs: Tensor, labels: Tensor, floor: float) -> Positions:
    """Returns the loudness of the frames of noisy speech, and of the clean speech in them.

    The loudness of a frame is 10 log₁₀ of the sum of its squared magnitudes, in decibels. The
    label `loudness` is how many decibels a frame of noisy speech is below the loudest of its
    sequence, in steps of 6. The label `speech` says whether the clean frame is at most 40 decibels
    below the loudest clean frame.

    Args:
        inputs: magnitudes of the noisy speech, `(batch, time, bins)`, 0 at padding.
        labels: log magnitudes of the clean speech, `(batch, time, bins)`; -100 at padding.
        floor: what was added to magnitudes before their logarithm was taken; frames are at least as
            loud as a single magnitude of it, so that silence has a loudness.
    """
    noisy = _decibels(inputs, floor)  # (batch, time)
    known = labels != IGNORED_LABEL
    clean = _decibels(magnitude(labels, floor).masked_fill(~known, 0.0), floor)
    below = noisy.amax(1, keepdim=True) - noisy
    loudness = (below / _STEP).long().clamp(max=len(_LOUDNESS) - 1)
    silence = _decibels(torch.zeros_like(inputs[:, :1]), floor)  # (batch, 1)
    least = torch.maximum(clean.amax(1, keepdim=True) - _SPEECH_RANGE, silence)
    speech = ((clean >= least) & (clean > silence)).long()
    return Positions(
        shape=(inputs.size(0), inputs.size(1)),
        word="frame",
        classes={
            "loudness": (loudness, [f"{step} dB below the loudest" for step in _LOUDNESS]),
            "speech": (speech, ["no speech", "speech"]),
        },
        levels={"loudness of noisy speech": noisy, "loudness of clean speech": clean},
    )


def _decibels(magnitudes: Tensor, floor: float) -> Tensor:
    energy = magnitudes.float().square().sum(-1)
    return 10 * torch.log10(energy.clamp(min=floor**2))
