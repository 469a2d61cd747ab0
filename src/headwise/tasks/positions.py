"""What stands at the positions of a batch, for analyses that ask which ones a head works on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from typing_extensions import Self


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
            sequence, `(batch,)`, counted from 0; negative where there is none.
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

    @classmethod
    def of_tokens(
        cls,
        tokens: Tensor,
        names: Mapping[int, str],
        word: str,
        classes: Mapping[str, tuple[Tensor, list[str]]] | None = None,
    ) -> Self:
        """Returns the description of tokens, `(batch, time)`.

        Args:
            tokens, names, word: see the class.
            classes: name of a label to its classes and their names.
        """
        labels = classes or {}
        return cls(
            shape=(tokens.size(0), tokens.size(1)),
            tokens=tokens,
            names=names,
            word=word,
            classes={name: numbers for name, (numbers, _) in labels.items()},
            class_names={name: called for name, (_, called) in labels.items()},
        )
