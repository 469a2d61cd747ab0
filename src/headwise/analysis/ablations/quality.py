"""How the quality of a model is measured under ablations: its scores, and the loss in groups."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.models.modeling import HeadwiseModel
from headwise.recipes.recipe import Evaluation
from headwise.tasks.scores import Outcome, Rows, Score
from headwise.tasks.task import Each, Task
from headwise.training.batches import Items
from headwise.training.loss import loss_and_labels

_GROUPS = 50  # at least so many, if there are as many sequences
_LARGEST_GROUP = 16


def group_losses(
    model: HeadwiseModel,
    items: Items,
    collate: Callable[[list[Any]], dict[str, Tensor]],
) -> np.ndarray:
    """Returns the total loss and the number of labels of groups of sequences.

    A group has up to 16 sequences of similar length, fewer where there would be less than 50
    groups. The labels are given to the model (teacher forcing), without label smoothing and
    auxiliary losses.

    Returns:
        An array of shape `(groups, 2)`. The groups are the same for all models.
    """
    longest = np.asarray(items.lengths).reshape(len(items), -1).max(axis=1)
    order = np.argsort(longest, kind="stable").tolist()
    size = max(1, min(_LARGEST_GROUP, len(order) // _GROUPS))
    rows = []
    with torch.no_grad():
        for start in range(0, len(order), size):
            batch = collate(items.__getitems__(order[start : start + size]))
            rows.append(loss_and_labels(model, batch))
    return torch.stack(rows).cpu().numpy()


@dataclass(frozen=True)
class Quality:
    """How the quality of a model is measured under each ablation."""

    # Evaluates the model as it is when called; scores with a row for each item.
    evaluate: Callable[[], Outcome]
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
        cls, model: HeadwiseModel, task: Task, part: str, settings: Evaluation
    ) -> "Quality":
        """The quality of a recipe's model: the scores of its task, and the loss."""
        return cls(
            evaluate=lambda: task.evaluate(model, part, settings, Each()),
            losses=lambda: group_losses(model, task.parts[part], task.collate),
            loss_name=task.loss_unit,
            item_name=task.item_name,
            determined_by={
                "items": task.digest(part),
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

        def evaluate() -> Outcome:
            measured = measure()
            if isinstance(measured, Tensor):
                measured = measured.detach().to("cpu", torch.float64)
            numbers = np.asarray(measured, dtype=np.float64)
            if numbers.ndim == 1 and len(numbers):
                numbers = np.stack([numbers, np.ones_like(numbers)], axis=1)
            if numbers.ndim != 2 or numbers.shape[1] != 2 or not len(numbers):
                raise ValueError(
                    f"the quality has the shape {numbers.shape}, expected (items,): a number for "
                    f"each item; or (items, 2): a total for each, and of how many it is"
                )
            lower = not higher_is_better
            score = Score.of(name, numbers, "ratio", lower_is_better=lower, digits=3)
            return Outcome(scores=[score])

        return cls(evaluate)
