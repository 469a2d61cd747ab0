"""Whether a system had stopped learning when its training ended."""

from collections.abc import Sequence
from typing import NamedTuple

from headwise.analysis.how_soon import Curve, mean_curve
from headwise.report.formatting import NONE

LITTLE = 0.01  # of the whole fall: a fall in the last tenth below it counts as none


class Convergence(NamedTuple):
    """How the mean validation loss of a system ended.

    Attributes:
        lowest_step, lowest: where it was lowest.
        last_step, last: the last validation.
        fall: by how much it fell in the last tenth of the steps; negative if it rose.
        whole: by how much it fell from the first validation to the lowest.
    """

    lowest_step: int
    lowest: float
    last_step: int
    last: float
    fall: float
    whole: float

    @property
    def is_reached(self) -> bool:
        """Whether the last tenth brought next to nothing."""
        return self.fall < LITTLE * self.whole

    @property
    def rose_again(self) -> bool:
        """Whether it had been clearly lower before the end."""
        return self.last - self.lowest >= LITTLE * self.whole


def convergence(curves: Sequence[Curve]) -> Convergence | None:
    """Returns how the mean of the validation losses ended; None with fewer than three of them.

    Args:
        curves: of each seed.

    >>> found = convergence([{0: 5.0, 80: 3.0, 90: 2.5, 100: 2.45}, {0: 5.0, 90: 2.7, 100: 2.65}])
    >>> found.last_step, round(found.last, 2), round(found.fall, 2), round(found.whole, 2)
    (100, 2.55, 0.05, 2.45)
    >>> found.is_reached
    False
    """
    mean = mean_curve(curves)
    if len(mean) < 3:
        return None
    steps = list(mean)
    last = steps[-1]
    before = [step for step in steps if step <= 0.9 * last] or steps[:1]
    lowest = min(steps, key=lambda step: mean[step])
    return Convergence(
        lowest_step=lowest,
        lowest=mean[lowest],
        last_step=last,
        last=mean[last],
        fall=mean[before[-1]] - mean[last],
        whole=mean[steps[0]] - mean[lowest],
    )


def in_a_sentence(name: str, found: Convergence | None, *, to_zero: bool = False) -> str:
    """Says how the training of a system ended.

    Args:
        name: of the system.
        found: of its seeds.
        to_zero: whether the learning rate fell to zero, which makes any loss flat.
    """
    if found is None:
        return f"Too few validations of {name} are kept to say whether it still fell."
    share = abs(found.fall) / found.whole if found.whole > 0 else None
    moved = "fell" if found.fall >= 0 else "rose"
    part = NONE if share is None else f"{share:.1%}"
    flat = "it was flat as the learning rate reached zero" if to_zero else "it was flat"
    ended = flat if found.is_reached else "it was still learning"
    if found.is_reached and found.rose_again:
        ended = "it had learned what it could, and overfitted after"
    return (
        f"The mean validation loss of {name} was lowest at step {found.lowest_step:,} of "
        f"{found.last_step:,} ({found.lowest:.3f}), and {found.last:.3f} at the end. Over the last "
        f"tenth of the steps it {moved} by {abs(found.fall):.3f}, which is {part} of its whole "
        f"fall: {ended}."
    )
