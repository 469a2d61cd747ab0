"""Learning rate schedules of the papers."""

import math
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Schedule = Literal["inverse-sqrt", "linear", "cosine", "constant", "plateau"]


def learning_rate_factor(step: int, schedule: Schedule, warmup: int, total: int) -> float:
    """What the peak learning rate is multiplied by at a step, counted from 0.

    Linear growth over `warmup` steps; then √(warmup/step), or a straight line or half a
    cosine wave to zero at `total` (Loshchilov & Hutter 2017, *SGDR*,
    https://arxiv.org/abs/1608.03983, without restarts), or constant. That of a plateau is constant
    too: `Plateau` lowers it.

    >>> [round(learning_rate_factor(s, "inverse-sqrt", 4, 100), 2) for s in (0, 1, 4, 16)]
    [0.25, 0.5, 0.89, 0.49]
    """
    step += 1  # a first step with a rate of zero would do nothing
    if step < warmup:
        return step / warmup
    if schedule == "inverse-sqrt":
        return (max(warmup, 1) / step) ** 0.5
    if schedule == "linear":
        return max(0.0, (total - step + 1) / max(1, total - warmup + 1))
    if schedule == "cosine":
        left = max(0.0, (total - step + 1) / max(1, total - warmup + 1))
        return (1 - math.cos(math.pi * min(1.0, left))) / 2
    return 1.0


class Plateau:
    """Lowers the learning rate when the validation loss stalls.

    It is a factor of the step, as `LambdaLR` takes them, and an object: so that PyTorch saves what
    it remembers in checkpoints, and a resumed run goes on as if it had not been stopped.

    Args:
        warmup: steps of linear growth.
        factor: what the rate is multiplied by each time.
        patience: so many validations in a row without a new best loss are waited for.

    Example:
        >>> plateau = Plateau(warmup=0, factor=0.5, patience=2)
        >>> for loss in (3.0, 2.0, 2.5, 2.0, 1.0, 1.5, 1.5):
        ...     plateau.validated(loss)
        >>> plateau(step=100)
        0.25
    """

    def __init__(self, warmup: int, factor: float, patience: int) -> None:
        self.warmup = warmup
        self.factor = factor
        self.patience = patience
        self.scale = 1.0
        self.best = float("inf")
        self.waited = 0

    def __call__(self, step: int) -> float:
        return self.scale * learning_rate_factor(step, "plateau", self.warmup, 0)

    def validated(self, loss: float) -> None:
        """Take note of a validation; the next step of the scheduler follows it."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.scale *= self.factor
            self.waited = 0


def learning_rate_scheduler(
    optimizer: Optimizer,
    schedule: Schedule,
    warmup: int,
    total: int,
    plateau: Plateau | None = None,
) -> LambdaLR:
    """A PyTorch scheduler that follows `learning_rate_factor`, or `plateau` where it is given."""

    def of_step(step: int) -> float:
        return learning_rate_factor(step, schedule, warmup, total)

    return LambdaLR(optimizer, plateau or of_step)
