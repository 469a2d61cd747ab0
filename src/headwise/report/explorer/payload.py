"""What the page of `headwise explore` is given: a model at work on one input, or several models.

This is the contract of the recording in Python and the page in JavaScript. Numbers of positions,
units, heads, layers and runs count from 0.
"""

import base64
import math
import zlib
from typing import Any, Literal

import numpy as np
from pydantic import Field

from headwise.analysis.words import Words
from headwise.tasks.scores import Record

_LEVEL = 4  # of deflate: twice as fast as 6, and 3% longer


def not_finite(what: str) -> ValueError:
    """Returns the error of numbers that JSON has no words for."""
    return ValueError(
        f"{what} has numbers that are not finite, expected finite ones: the model has diverged, "
        f"or its numbers are too large for its precision"
    )


class Blob(Record):
    """An array of numbers from 0, or signed ones from `-scale`, to `scale`, a byte each.

    The number of byte b is `scale * sign(d) * (|d| / levels) ** power` with `d = b - zero`.
    """

    shape: list[int]  # of the array; the last size varies fastest
    scale: float  # the number of the largest byte
    levels: int = Field(255, ge=1, le=255)  # the largest byte, counted from `zero`
    zero: int = 0  # the byte of the number 0; more than 0: the numbers are signed
    power: int = 1  # 2: small numbers have finer steps than large ones, as attention needs it
    data: str  # the bytes, by raw deflate and base64

    @classmethod
    def of(
        cls,
        array: np.ndarray,
        *,
        scale: float | None = None,
        levels: int = 255,
        power: int = 1,
        signed: bool = False,
    ) -> "Blob":
        """Packs an array; numbers beyond 0, or `-scale` if signed, to `scale` become the nearest.

        Raises:
            ValueError: numbers are not finite, which JSON has no words for.

        Example:
            >>> blob = Blob.of(np.array([[1.0, 0.0], [0.4, 0.6]]))
            >>> blob.numbers().round(2).tolist()
            [[1.0, 0.0], [0.4, 0.6]]
        """
        scale = scale or float((np.abs(array) if signed else array).max(initial=0.0)) or 1.0
        if not math.isfinite(scale):
            raise not_finite("array")
        numbers = np.asarray(array, np.float32)
        levels, zero = (levels // 2, levels // 2) if signed else (levels, 0)
        shares = np.clip(numbers / scale, -int(signed), 1)
        steps = np.sign(shares) * np.abs(shares) ** (1 / power) * levels
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress((steps + zero + 0.5).astype(np.uint8).tobytes())
        data = base64.b64encode(packed + packer.flush()).decode("ascii")
        shape = list(array.shape)
        return cls(shape=shape, scale=scale, levels=levels, zero=zero, power=power, data=data)

    def numbers(self) -> np.ndarray:
        """Returns the array, as a browser unpacks it."""
        unpacked = zlib.decompress(base64.b64decode(self.data), -zlib.MAX_WBITS)
        steps = np.frombuffer(unpacked, np.uint8).reshape(self.shape) - float(self.zero)
        return self.scale * np.sign(steps) * (np.abs(steps) / self.levels) ** self.power


class Stack(Record):
    """What stands at the positions of one stack of a model."""

    kind: Literal["text", "image", "speech"]
    # What each position is called: a token, with the space that it begins with; `#rrggbb` of a
    # pixel; the time of a frame.
    tokens: list[str]
    special: list[int] = []  # positions without text: `<eos>`, `<mask>`, the start of an image
    given: int | None = None  # the model itself wrote the positions from this one on
    # Of images: pixels of a row, rows, and the position of the first pixel. The others follow row
    # by row.
    width: int | None = None
    height: int | None = None
    offset: int = 0
    # Of speech: the time from one frame to the next, samples per second, frames × frequencies up to
    # half of `rate` (1 is the loudest of the input, 0 is 80 dB below it, and between them it is
    # even in decibels), and a WAV file as a data URI.
    frame_seconds: float | None = None
    rate: int | None = None
    spectrogram: Blob | None = None
    sound: str | None = None


class Attention(Record):
    """By which weights the heads of one attention read."""

    name: str  # empty, or which attention it is of a system that holds several
    queries: str  # the stack of the queries, a key of `stacks`
    keys: str | None  # the stack of the keys; None if it is not known what they are
    heads: list[Blob]  # for each head queries × keys; a row sums to 1, or to 0 if it reads nothing
    # The unit to which each head belongs, where heads belong to units. If the place has `chosen`,
    # head j is the j-th of the units that each position has chosen.
    unit_of_head: list[int] | None = None


class Place(Record):
    """A system in a model: what it decided, and how its heads read."""

    path: str  # of the module in the model
    site: str  # encoder_self, decoder_self, decoder_cross, or empty
    layer: int  # the layer, or the number of the system
    system: str  # the system's name in plans, a key of the run's `words`
    whole_layer: bool  # whether the system takes the place of a layer
    stack: str  # the stack at whose positions it decides, a key of `stacks`
    # What one decision holds for.
    decides: Literal["position", "sequence", "everything", "nothing"]
    units: int  # how many units there are; 0 if it decides nothing
    unit_names: list[str] = []  # what each unit is called: `expert 3`
    # The weight of each unit: positions × units, or 1 × units if one decision holds for all
    # positions. A row sums to 1. None if it decides nothing.
    weights: Blob | None
    # Where a system chooses: the units of each position, in the order of the attention's heads.
    chosen: list[list[int]] | None = None
    # Of a decoder's layer as a whole, that over itself and that over the encoder.
    attentions: list[Attention]


class Candidate(Record):
    """A token or a class, and the probability that the model gives to it."""

    text: str
    probability: float


class Prediction(Record):
    """What the model takes for probable at one position."""

    stack: str  # a key of `stacks`
    position: int  # one behind the last of the stack is what the model would write next
    best: list[Candidate]  # the most probable, the best first
    probability: float | None = None  # of what stands there, or stood there before a mask


class Made(Record):
    """A text, a picture or a sound that the model has made, or one to compare with it."""

    label: str  # what it is: translation, reference, continuation, enhanced
    by_model: bool  # whether the model has made it
    text: str | None = None
    picture: str | None = None  # a PNG file as a data URI
    sound: str | None = None  # a WAV file as a data URI
    spectrogram: Blob | None = None  # of the sound, as in a stack


class Output(Record):
    """What the model makes of the input."""

    made: list[Made] = []
    predictions: list[Prediction] = []
    classes: list[Candidate] = []  # of the input, the best first
    number: float | None = None  # the output of a regression
    label: str | None = None  # the true class or number of a test item


class Ablation(Record):
    """A change of a system that a reader can ask for, such as the removal of a unit."""

    path: str  # of the system
    label: str  # in words: without expert 3
    name: str  # of the ablation, as the system declares it
    options: dict[str, Any] = {}
    unit: int | None = None  # the unit that it removes, if it removes one
    head: int | None = None  # the head that it removes, if it removes one


class Run(Record):
    """One model at work on the input."""

    name: str
    task: str  # of its recipe; empty for any other model
    words: dict[str, Words]  # a system's name to the words for its decisions
    stacks: dict[str, Stack]  # encoder, decoder; or `input`, of a model that is none of headwise's
    places: list[Place]  # the systems, in the order in which they stand
    output: Output
    ablations: list[Ablation] = []  # what a reader can ask for
    ablated: list[Ablation] = []  # what is in force in this recording


class Item(Record):
    """The item of the data that is the input."""

    part: str
    number: int
    of: int  # how many items the part has


class Payload(Record):
    """All data that the page of the explorer shows."""

    title: str
    served: bool  # whether a model is running that answers to `/api/explore`
    item: Item | None = None  # None: the user has given the input
    text: str | None = None  # the input, if it is text
    note: str = ""  # what a reader should know of the input, a sentence
    target: str | None = None  # what the user wants the decoder to read
    takes_text: bool  # whether the input is text, which a reader can type
    takes_target: bool = False  # whether a target can be given
    runs: list[Run]
    command: str = ""  # that made it


class Asked(Record):
    """An ablation of one run, as the page asks for it."""

    run: int = Field(ge=0)  # the number of the run
    path: str
    name: str
    options: dict[str, Any] = {}


class Question(Record):
    """The body of a POST to `/api/explore`; the answer is a payload, or `{"error": "..."}`.

    With neither a text nor an item, the input is that of the page.
    """

    text: str | None = None
    target: str | None = None
    item: int | None = Field(None, ge=0)  # the number of an item of the page's part
    ablations: list[Asked] = []  # at most one for each system of a run
