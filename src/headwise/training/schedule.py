"""Learning rate schedules of the papers."""

from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Schedule = Literal["inverse-sqrt", "linear", "constant"]


def learning_rate_factor(step: int, schedule: Schedule, warmup: int, total: int) -> float:
    """What the peak learning rate is multiplied by at a step, counted from 0.

    Linear growth over `warmup` steps; then √(warmup/step), or a straight line to zero at `total`,
    or constant.

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
    return 1.0


def learning_rate_scheduler(
    optimizer: Optimizer, schedule: Schedule, warmup: int, total: int
) -> LambdaLR:
    """A PyTorch scheduler that follows `learning_rate_factor`."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, schedule, warmup, total))
