"""How the quality of a model is measured under ablations: its scores, and the loss in groups."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.settings import EvaluationSettings
from headwise.tasks.outcome import Outcome, Score
from headwise.tasks.significance import Rows, Statistic, of_totals, score_of
from headwise.tasks.task import Task
from headwise.training.batching import Items
from headwise.training.evaluating import summed_loss

_GROUPS = 50  # at least so many, if there are as many sequences
_LARGEST_GROUP = 16

# The mean over labels, from rows of a group's total loss and its number of labels.
MEAN_LOSS: Statistic = of_totals(lambda totals: totals[0] / max(1.0, totals[1]))


def group_losses(
    model: HeadwiseModel,
    items: Items,
    collate: Callable[[list[Any]], dict[str, Tensor]],
) -> np.ndarray:
    """Returns the total loss and the number of labels of groups of sequences.

    A group has up to 16 sequences of similar length, fewer where there would be less than 50
    groups. The labels are given to the model (teacher forcing), without label smoothing and
    auxiliary losses. `MEAN_LOSS` makes the mean over all labels of it.

    Returns:
        An array of shape `(groups, 2)`. The groups are the same for all models.
    """
    longest = np.asarray(items.lengths).reshape(len(items), -1).max(axis=1)
    order = np.argsort(longest, kind="stable").tolist()
    size = max(1, min(_LARGEST_GROUP, len(order) // _GROUPS))
    rows = []
    with torch.no_grad():
        for start in range(0, len(order), size):
            batch = collate([items[index] for index in order[start : start + size]])
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            loss = summed_loss(model, batch)
            count = (batch["labels"] != IGNORED_LABEL).sum()
            rows.append(torch.stack([loss.double(), count.double()]))
    return torch.stack(rows).cpu().numpy()


@dataclass(frozen=True)
class Quality:
    """How the quality of a model is measured under each ablation."""

    # Evaluates the model as it is when called; scores with a row for each item.
    evaluate: Callable[[], Outcome]
    # Returns what computes a score from its rows, from the score's name.
    statistic: Callable[[str], Statistic]
    # The total loss and the number of labels of groups of sequences, see `group_losses`; None
    # to leave the loss out.
    losses: Callable[[], Rows] | None = None
    loss_name: str = "nats per token"  # the unit of the loss
    item_name: str = "items"  # what the items of the scores are
    # All that the quality depends on besides model and ablation: a hash of the items, the
    # settings of the evaluation.
    determined_by: Mapping[str, Any] | None = None

    @classmethod
    def of_task(
        cls, model: HeadwiseModel, task: Task, part: str, settings: EvaluationSettings
    ) -> "Quality":
        """The quality of a recipe's model: the scores of its task, and the loss."""
        items = task.part(part)
        return cls(
            evaluate=lambda: task.evaluate(model, items, settings, lambda count: None),
            statistic=lambda name: task.statistic(name, settings),
            losses=lambda: group_losses(model, items, task.collate),
            loss_name=task.loss_name,
            item_name=task.item_name,
            determined_by={
                "items": task.digest_of(part),
                "evaluation": settings.model_dump(mode="json"),
            },
        )

    @classmethod
    def of_numbers(
        cls,
        measure: Callable[[], Any],
        *,
        higher_is_better: bool = True,
        name: str = "quality",
    ) -> "Quality":
        """Quality as the mean of what `measure` returns: a number an item, in the same order.

        Or two numbers an item, `(items, 2)`: the mean is the sum of the first divided by that of
        the second.
        """
        mean = of_totals(lambda totals: totals[0] / totals[1])

        def evaluate() -> Outcome:
            measured = measure()
            if isinstance(measured, Tensor):
                measured = measured.detach().to("cpu", torch.float64)
            numbers = np.asarray(measured, dtype=np.float64)
            if numbers.ndim == 1 and len(numbers):
                numbers = np.stack([numbers, np.ones_like(numbers)], axis=1)
            rows = numbers
            if rows.ndim != 2 or rows.shape[1] != 2 or not len(rows):
                raise ValueError(
                    f"the quality has the shape {numbers.shape}, expected (items,): a number for "
                    f"each item; or (items, 2): a total for each, and of how many it is"
                )
            score = Score(
                name=name,
                value=score_of(rows, mean),
                higher_is_better=higher_is_better,
                digits=3,
            )
            return Outcome.of([(score, rows)])

        return cls(evaluate, lambda _: mean)
