"""What stands at the positions of a batch, for analyses that ask which ones a head works on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Positions:
    """What stands at each position of one stack of a model.

    Attributes:
        shape: batch and time.
        tokens: `(batch, time)`, the number of what stands there: a token of a vocabulary, a colour
            of a palette. None where nothing stands there that can be numbered.
        names: the name of each such number, as pages show it.
        word: what they are called, in the singular: token, colour.
        classes: name of a label to the class of each position, `(batch, time)`, or of each
            sequence, `(batch,)`, counted from 0.
        class_names: name of a label to the names of its classes.
        levels: name of a quantity to its value at each position, `(batch, time)`: the loudness of
            a frame.
    """

    shape: tuple[int, int]
    tokens: Tensor | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    word: str = "token"
    classes: Mapping[str, Tensor] = field(default_factory=dict)
    class_names: Mapping[str, list[str]] = field(default_factory=dict)
    levels: Mapping[str, Tensor] = field(default_factory=dict)
