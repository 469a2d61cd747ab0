"""All questions on decisions, asked of one model in one pass over the data."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.behaviour.observing import observe
from headwise.models.decisions import record
from headwise.tasks.positions import Positions

QUESTIONS: dict[str, Callable[[], Any]] = {}


def ask(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    positions: Callable[[Mapping[str, Tensor]], Mapping[str, Positions]],
    advance: Callable[[int], object] = lambda count: None,
) -> dict[str, Any]:
    """Runs a model on all batches and returns the answers, by their fields in `RunAnalysis`.

    Args:
        model: any module that holds systems of heads; it is left in evaluation mode.
        batches: keyword arguments of its forward.
        positions: returns what stands at the positions of a batch, see `Task.positions`.
        advance: called with the number of sequences that are done.

    Raises:
        ValueError: the model holds no system.
    """
    questions = {name: question() for name, question in QUESTIONS.items()}
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    sequences = 0
    model.eval()
    with torch.no_grad():
        for batch in batches:
            with record(model) as decided:
                model(**{name: tensor.to(device) for name, tensor in batch.items()})
            observed = observe(decided, positions(batch), {})
            for question in questions.values():
                question.add(observed)
            count = len(next(iter(batch.values())))
            sequences += count
            advance(count)
    answers = {name: question.result() for name, question in questions.items()}
    return {**answers, "sequences": sequences}
