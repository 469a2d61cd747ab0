"""How what a model does moved while it was trained, from the result of its run."""

from pydantic import BaseModel, Field

from headwise.analysis.decisions.snapshots import DecisionCourse
from headwise.analysis.results import Course, RunResult
from headwise.tasks.outcome import RECORD


class OverTraining(BaseModel):
    """What a run has kept of its training, other than losses."""

    model_config = RECORD

    stacks: list[str] = Field(description="The stacks of the model: encoder, decoder, or both.")
    snapshots: list[DecisionCourse] = Field(description="As in `RunResult`.")
    recorded: list[Course] = Field(description="What rules of training recorded, as `courses`.")


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
