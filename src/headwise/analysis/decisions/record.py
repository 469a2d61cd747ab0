"""The record of an analysis, which `analysis.json` holds, and how it is made in one pass."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from pydantic import Field
from torch import Tensor, nn

from headwise.analysis.ablations.results import AblationAnalysis
from headwise.analysis.decisions.entropy import Entropy, EntropyRecord
from headwise.analysis.decisions.explained import Explained, ExplainedShare
from headwise.analysis.decisions.layers import Layers, StackLikeness
from headwise.analysis.decisions.load import Load, LoadRecord
from headwise.analysis.decisions.observing import Observed, observe_batch
from headwise.analysis.decisions.ranges import PlaceRanges, Ranges
from headwise.analysis.decisions.snapshots import DecisionCourse
from headwise.analysis.decisions.tokens import Tokens, TokensRecord
from headwise.analysis.results import Course, RunResult
from headwise.analysis.words import Words
from headwise.tasks.scores import Record
from headwise.tasks.task import Positions


class OverTraining(Record):
    """What a run has kept of its training, other than losses."""

    stacks: list[str]  # the stacks of the model: encoder, decoder, or both
    snapshots: list[DecisionCourse]  # as in `RunResult`
    recorded: list[Course]  # what rules of training recorded, as `courses`


def courses_of(result: RunResult) -> OverTraining | None:
    """Returns what a run has kept of its training; None if that is nothing.

    Standard attention leaves nothing, and neither does a run with `training.snapshots: false` whose
    rules record nothing. A run that was never trained further than its start has no course.
    """
    snapshots = [course for course in result.snapshots if len(course.steps) > 1]
    recorded = [course for course in result.courses if len(course.steps) > 1]
    if not snapshots and not recorded:
        return None
    return OverTraining(stacks=list(result.macs_lengths), snapshots=snapshots, recorded=recorded)


class RunAnalysis(Record):
    """What the heads of one model do on one part of the data."""

    name: str  # name of the run, as the page shows it
    words: dict[str, Words]  # A system's name to the words for its decisions
    sequences: int  # number of sequences that were read
    layers: list[StackLikeness] = []  # how alike the layers of each stack decide
    ranges: list[PlaceRanges] = []  # the weights that frequent tokens get of each system
    # How undecided the systems are; None if none decides anything.
    entropy: EntropyRecord | None = None
    load: list[LoadRecord] = []  # how the work is shared among the units of each system
    # Which tokens, and classes of positions, go to which units of each system.
    tokens: list[TokensRecord] = []
    # How much of the decisions of each system each label explains.
    explained: list[ExplainedShare] = []
    # What it costs the model to do without parts of its systems; None if that was not asked
    # for.
    ablations: AblationAnalysis | None = None
    # How decisions moved over the training; None if the run has kept nothing of that.
    courses: OverTraining | None = None


class AnalysisRecord(Record):
    """The analyses of one model, or of several side by side."""

    title: str
    command: str = ""  # the command that made it; empty if none did
    part: str  # the part of the data, and how much it is
    runs: list[RunAnalysis] = Field(min_length=1)
    against: str | None = None  # name of the run to which differences are given
    findings: list[str] = []  # what they come to: up to three sentences for each run
    versions: dict[str, str] = {}
    machine: str = ""


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
        positions: returns what stands at the positions of a batch, see `Task.describe`.
        advance: called with the number of sequences that are done.
        padding: returns what is padding in a batch, for systems that were not told: `encoder`,
            `decoder` or the empty stack to `(batch, time)`, `True` at padding.

    Raises:
        ValueError: the model holds no system, or a batch is no mapping of tensors.
    """
    questions = {name: question() for name, question in QUESTIONS.items()}
    sequences = 0
    model.eval()
    for batch in batches:
        _check_batch(batch)
        observed = observe_batch(model, batch, positions(batch), padding(batch))
        if sequences:  # what holds for everything is one decision, not one for each batch
            observed = [made for made in observed if made.sequences is not None]
        for question in questions.values():
            question.add(observed)
        count = len(next(iter(batch.values())))
        sequences += count
        advance(count)
    answers = {name: question.result() for name, question in questions.items()}
    return {**answers, "sequences": sequences}


def _check_batch(batch: Any) -> None:
    expected = "expected a mapping of the arguments of the model's forward to tensors"
    if not isinstance(batch, Mapping):
        raise ValueError(f"a batch is a {type(batch).__name__}, {expected}")
    for name, value in batch.items():
        if not hasattr(value, "to"):
            raise ValueError(f"a batch has a {type(value).__name__} as {name!r}, {expected}")
