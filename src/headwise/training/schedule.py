"""Learning rate schedules of the papers."""

from collections.abc import Callable
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


def branch_learning_rate_factor(step: int, warmup: int, total: int, freeze_last: int) -> float:
    """Likewise for the Weighted Transformer's κ and α; zero in the last `freeze_last` steps.

    The paper's (d/N)^-0.5 · min(s^-0.5, s · warmup^-1.5) over its peak (d/N)^-0.5 · warmup^-0.5.

    >>> [branch_learning_rate_factor(s, 4, total=20, freeze_last=3) for s in (0, 3, 15, 16, 17)]
    [0.25, 1.0, 0.5, 0.48507125007266594, 0.0]
    """
    if step >= total - freeze_last:
        return 0.0
    step += 1
    return min((warmup / step) ** 0.5, step / warmup)


def learning_rate_scheduler(
    optimizer: Optimizer,
    schedule: Schedule,
    warmup: int,
    total: int,
    branch_factor: Callable[[int], float] | None = None,
) -> LambdaLR:
    """A PyTorch scheduler that follows `learning_rate_factor`.

    Groups of parameters that carry the key `branches` follow `branch_factor` instead.
    """

    def factor(step: int) -> float:
        return learning_rate_factor(step, schedule, warmup, total)

    groups = optimizer.param_groups
    return LambdaLR(
        optimizer,
        [branch_factor if branch_factor and g.get("branches") else factor for g in groups],
    )
