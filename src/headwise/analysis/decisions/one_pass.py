"""All questions on decisions, asked of one model in one pass over the data."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from headwise.analysis.decisions.entropy import Entropy
from headwise.analysis.decisions.explained import Explained
from headwise.analysis.decisions.layers import Layers
from headwise.analysis.decisions.likeness import Likeness
from headwise.analysis.decisions.load import Load
from headwise.analysis.decisions.observing import Observed, observe_batch
from headwise.analysis.decisions.ranges import Ranges
from headwise.analysis.decisions.tokens import Tokens
from headwise.tasks.positions import Positions


class Question(Protocol):
    """A question on decisions, answered from running sums."""

    def add(self, observed: list[Observed]) -> None:
        """Counts the decisions of one batch."""

    def result(self) -> Any:
        """Returns the answer, as the field of the question in `RunAnalysis` has it."""


# By their fields in `RunAnalysis`.
QUESTIONS: dict[str, Callable[[], Question]] = {
    "entropy": Entropy,
    "load": Load,
    "tokens": Tokens,
    "explained": Explained,
    "layers": Layers,
    "ranges": Ranges,
}


def ask(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    positions: Callable[[Mapping[str, Tensor]], Mapping[str, Positions]],
    advance: Callable[[int], object] = lambda count: None,
    padding: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda batch: {},
) -> dict[str, Any]:
    """Runs a model on all batches and returns the answers, by their fields in `RunAnalysis`.

    Args:
        model: any module that holds systems of heads; it is left in evaluation mode.
        batches: keyword arguments of its forward.
        positions: returns what stands at the positions of a batch, see `Task.positions`.
        advance: called with the number of sequences that are done.
        padding: returns what is padding in a batch, for systems that were not told: `encoder`,
            `decoder` or the empty stack to `(batch, time)`, `True` at padding.

    Raises:
        ValueError: the model holds no system.
    """
    questions = {name: question() for name, question in QUESTIONS.items()}
    sequences = 0
    model.eval()
    with Likeness(model) as likeness:
        for batch in batches:
            hidden = padding(batch)
            likeness.padding = hidden
            observed = observe_batch(model, batch, positions(batch), hidden)
            for question in questions.values():
                question.add(observed)
            count = len(next(iter(batch.values())))
            sequences += count
            advance(count)
    answers = {name: question.result() for name, question in questions.items()}
    return {**answers, "likeness": likeness.result(), "sequences": sequences}
