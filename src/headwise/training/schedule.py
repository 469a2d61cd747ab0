"""Learning rate schedules of the papers.

They are functions of our own because the schedules of transformers start from a learning rate of
zero, where the first step would do nothing, and PyTorch's `ReduceLROnPlateau` cannot be combined
with a warm-up and waits for one validation more.
"""

import math
from typing import Literal

Schedule = Literal["inverse-sqrt", "linear", "cosine", "constant", "plateau"]


def learning_rate_factor(step: int, schedule: Schedule, warmup: int, total: int) -> float:
    """The factor of the peak learning rate at a step, from 0, of a run of `total` steps.

    The factor grows linearly over `warmup` steps. Then it is √(warmup/step), or falls to zero at
    `total` along a straight line or half a cosine wave (Loshchilov & Hutter 2017, *SGDR*,
    https://arxiv.org/abs/1608.03983, without restarts), or stays constant. For "plateau" it stays
    constant too: `Plateau` lowers it.

    >>> [round(learning_rate_factor(s, "inverse-sqrt", 4, 100), 2) for s in (0, 1, 4, 16)]
    [0.25, 0.5, 0.89, 0.49]
    """
    step += 1  # the first step has a learning rate above zero
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
    """Lowers the learning rate by a factor when the validation loss stops improving.

    `patience` is the number of validations in a row without a new best loss after which this
    happens. `LambdaLR` calls it with the step. Since it is an object, PyTorch saves its state in
    checkpoints, so that a resumed run continues as if it had not been stopped.
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
        """Records the loss of a validation, which takes effect at the scheduler's next step."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.scale *= self.factor
            self.waited = 0
