"""What the page of `headwise explore` is given: a model at work on one input, or several models.

This is the contract of the recording in Python and the page in JavaScript. Numbers of positions,
units, heads, layers and runs count from 0.
"""

import base64
import zlib
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from headwise.heads.words import Words
from headwise.tasks.outcome import RECORD

_LEVEL = 4  # of deflate: twice as fast as 6, and 3% longer


class Record(BaseModel):
    """What the page reads: with these fields and no others."""

    model_config = RECORD


class Blob(Record):
    """An array of numbers from 0 to `scale`, a byte each.

    The number of byte b is `scale * (b / levels) ** power`.
    """

    shape: list[int] = Field(description="Sizes of the array; the last one varies fastest.")
    scale: float = Field(description="The number of the largest byte.")
    levels: int = Field(255, ge=1, le=255, description="The largest byte.")
    power: int = Field(
        1, description="2: small numbers have finer steps than large ones, as attention needs it."
    )
    triangle: bool = Field(
        False,
        description="The array is square and 0 above its diagonal, and only row 0, columns 0 to 0, "
        "row 1, columns 0 to 1, and so on are there.",
    )
    data: str = Field(description="The bytes, by raw deflate and base64.")

    @classmethod
    def of(
        cls,
        array: np.ndarray,
        *,
        scale: float | None = None,
        levels: int = 255,
        power: int = 1,
        triangle: bool = False,
    ) -> "Blob":
        """Packs an array; numbers beyond 0 to `scale` become the nearest of these.

        Example:
            >>> blob = Blob.of(np.array([[1.0, 0.0], [0.4, 0.6]]), triangle=True)
            >>> blob.numbers().round(2).tolist()
            [[1.0, 0.0], [0.4, 0.6]]
        """
        scale = scale or float(array.max(initial=0.0)) or 1.0
        numbers = np.asarray(array, np.float32)
        shape = list(numbers.shape)
        if triangle:
            numbers = numbers[np.tri(shape[0], dtype=bool)]
        shares = np.clip(numbers / scale, 0, 1) ** (1 / power)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress((shares * levels + 0.5).astype(np.uint8).tobytes())
        data = base64.b64encode(packed + packer.flush()).decode("ascii")
        return cls(
            shape=shape, scale=scale, levels=levels, power=power, triangle=triangle, data=data
        )

    def numbers(self) -> np.ndarray:
        """Returns the array, as a browser unpacks it."""
        unpacked = zlib.decompress(base64.b64decode(self.data), -zlib.MAX_WBITS)
        numbers = np.frombuffer(unpacked, np.uint8)
        if self.triangle:
            square = np.zeros(self.shape, np.uint8)
            square[np.tri(self.shape[0], dtype=bool)] = numbers
            numbers = square
        return self.scale * (numbers.reshape(self.shape) / self.levels) ** self.power


class Stack(Record):
    """What stands at the positions of one stack of a model."""

    kind: Literal["text", "image", "speech"]
    tokens: list[str] = Field(
        description="What each position is called: a token, with the space that it begins with; "
        "`#rrggbb` of a pixel; the time of a frame."
    )
    special: list[int] = Field(
        [], description="Positions that hold no text: `<eos>`, `<mask>`, the start of an image."
    )
    given: int | None = Field(
        None,
        description="The model itself wrote the positions from this one on. None: it wrote none.",
    )
    # of images
    width: int | None = Field(None, description="Images: pixels of a row.")
    height: int | None = Field(None, description="Images: rows.")
    offset: int = Field(
        0, description="Images: the position of the first pixel. The others follow row by row."
    )
    # of speech
    frame_seconds: float | None = Field(
        None, description="Speech: the time from one frame to the next."
    )
    rate: int | None = Field(None, description="Speech: samples per second.")
    spectrogram: Blob | None = Field(
        None,
        description="Speech: frames × frequencies up to half of `rate`. 1 is the loudest of the "
        "input, 0 is 80 dB below it, and between them it is even in decibels.",
    )
    sound: str | None = Field(None, description="Speech: the sound, a WAV file as a data URI.")


class Attention(Record):
    """By which weights the heads of one attention read."""

    name: str = Field(description="Empty, or which attention it is of a system that holds several.")
    queries: str = Field(description="The stack of the queries, a key of `stacks`.")
    keys: str | None = Field(
        description="The stack of the keys; None if it is not known what they are."
    )
    heads: list[Blob] = Field(
        description="For each head queries × keys. A row sums to 1, or to 0 if it reads nothing."
    )
    unit_of_head: list[int] | None = Field(
        None,
        description="The unit to which each head belongs, where heads belong to units. If the "
        "place has `chosen`, head j is the j-th of the units that each position has chosen.",
    )


class Place(Record):
    """A system in a model: what it decided, and how its heads read."""

    path: str = Field(description="The path of the module in the model.")
    site: str = Field(description="encoder_self, decoder_self, decoder_cross, or empty.")
    layer: int = Field(description="The layer, or the number of the system, counted from 0.")
    system: str = Field(description="The system's name in plans, a key of the run's `words`.")
    whole_layer: bool = Field(description="Whether the system takes the place of a layer.")
    stack: str = Field(description="The stack at whose positions it decides, a key of `stacks`.")
    decides: Literal["position", "sequence", "everything", "nothing"] = Field(
        description="What one decision holds for."
    )
    units: int = Field(description="How many units there are; 0 if it decides nothing.")
    unit_names: list[str] = Field([], description="What each unit is called: `expert 3`.")
    weights: Blob | None = Field(
        description="The weight of each unit: positions × units, or 1 × units if one decision "
        "holds for all positions. A row sums to 1. None if it decides nothing."
    )
    chosen: list[list[int]] | None = Field(
        None,
        description="Where a system chooses: the units that each position has chosen, in the order "
        "of the attention's heads.",
    )
    attentions: list[Attention] = Field(
        description="Its attentions: of a decoder's layer as a whole, that over itself and that "
        "over the encoder."
    )


class Candidate(Record):
    """Something that the model might have written."""

    text: str
    probability: float


class Prediction(Record):
    """What the model takes for probable at one position."""

    stack: str = Field(description="A key of `stacks`.")
    position: int = Field(
        description="The position that is predicted. One behind the last of the stack is what the "
        "model would write next."
    )
    best: list[Candidate] = Field(description="The most probable, the best first.")
    probability: float | None = Field(
        None, description="The probability of what stands there, or stood there before a mask."
    )


class Made(Record):
    """A text, a picture or a sound that the model has made, or one to compare with it."""

    label: str = Field(description="What it is: translation, reference, continuation, enhanced.")
    by_model: bool = Field(description="Whether the model has made it.")
    text: str | None = None
    picture: str | None = Field(None, description="A PNG file as a data URI.")
    sound: str | None = Field(None, description="A WAV file as a data URI.")
    spectrogram: Blob | None = Field(None, description="Of the sound, as in a stack.")


class Output(Record):
    """What the model makes of the input."""

    made: list[Made] = []
    predictions: list[Prediction] = []
    classes: list[Candidate] = Field([], description="The classes of the input, the best first.")
    number: float | None = Field(None, description="The output of a regression.")
    label: str | None = Field(None, description="The true class or number of a test item.")


class Ablation(Record):
    """A change of a system that a reader can ask for, such as the removal of a unit."""

    path: str = Field(description="The path of the system.")
    label: str = Field(description="In words: without expert 3.")
    name: str = Field(description="The ablation's name, as the system declares it.")
    options: dict[str, Any] = {}
    unit: int | None = Field(None, description="The unit that it removes, if it removes one.")
    head: int | None = Field(None, description="The head that it removes, if it removes one.")


class Run(Record):
    """One model at work on the input."""

    name: str = Field(description="The name of the run.")
    task: str = Field(description="The task of its recipe; empty for any other model.")
    words: dict[str, Words] = Field(description="A system's name to the words for its decisions.")
    stacks: dict[str, Stack] = Field(
        description="encoder, decoder; or `input`, of a model that is none of headwise's."
    )
    places: list[Place] = Field(description="The systems, in the order in which they stand.")
    output: Output
    ablations: list[Ablation] = Field([], description="What a reader can ask for.")
    ablated: list[Ablation] = Field([], description="What is in force in this recording.")


class Item(Record):
    """The item of the data that is the input."""

    part: str
    number: int
    of: int = Field(description="How many items the part has.")


class Payload(Record):
    """All that the page shows."""

    title: str
    served: bool = Field(description="Whether a model is running that answers to `/api/explore`.")
    item: Item | None = Field(None, description="None: the user has given the input.")
    text: str | None = Field(None, description="The input, if it is text.")
    note: str = Field("", description="What a reader should know of the input, a sentence.")
    target: str | None = Field(None, description="What the user wants the decoder to read.")
    takes_text: bool = Field(description="Whether the input is text, which a reader can type.")
    takes_target: bool = Field(False, description="Whether a target can be given.")
    runs: list[Run]
    command: str = Field("", description="The command that made it.")


class Asked(Record):
    """An ablation of one run, as the page asks for it."""

    run: int = Field(ge=0, description="The number of the run.")
    path: str
    name: str
    options: dict[str, Any] = {}


class Question(Record):
    """The body of a POST to `/api/explore`; the answer is a payload, or `{"error": "..."}`.

    With neither a text nor an item, the input is that of the page.
    """

    text: str | None = None
    target: str | None = None
    item: int | None = Field(None, ge=0, description="The number of an item of the page's part.")
    ablations: list[Asked] = Field([], description="At most one for each system of a run.")
