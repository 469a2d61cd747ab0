"""The record of an analysis: what `analysis.json` holds and the page is made of."""

from pydantic import BaseModel, Field

from headwise.analysis.ablations.results import AblationAnalysis
from headwise.analysis.decisions.courses import OverTraining
from headwise.analysis.decisions.entropy import EntropyRecord
from headwise.analysis.decisions.explained import ExplainedShare
from headwise.analysis.decisions.layers import StackLikeness
from headwise.analysis.decisions.likeness import ModelLikeness
from headwise.analysis.decisions.load import LoadRecord
from headwise.analysis.decisions.ranges import PlaceRanges
from headwise.analysis.decisions.tokens import TokensRecord
from headwise.heads.words import Words
from headwise.tasks.outcome import RECORD


class RunAnalysis(BaseModel):
    """What the heads of one model do on one part of the data."""

    model_config = RECORD

    name: str = Field(description="Name of the run, as the page shows it.")
    words: dict[str, Words] = Field(description="A system's name to the words for its decisions.")
    sequences: int = Field(description="Number of sequences that were read.")
    layers: list[StackLikeness] = Field(
        default=[], description="How alike the layers of each stack decide."
    )
    ranges: list[PlaceRanges] = Field(
        default=[], description="The weights that frequent tokens get of each system."
    )
    entropy: EntropyRecord | None = Field(
        default=None, description="How undecided the systems are; None if none decides anything."
    )
    load: list[LoadRecord] = Field(
        default=[], description="How the work is shared among the units of each system."
    )
    tokens: list[TokensRecord] = Field(
        default=[],
        description="Which tokens, and classes of positions, go to which units of each system.",
    )
    explained: list[ExplainedShare] = Field(
        default=[], description="How much of the decisions of each system each label explains."
    )
    ablations: AblationAnalysis | None = Field(
        default=None,
        description="What it costs the model to do without parts of its systems; None if that was "
        "not asked for.",
    )
    courses: OverTraining | None = Field(
        default=None,
        description="How decisions moved over the training; None if the run has kept nothing of "
        "that.",
    )
    likeness: ModelLikeness | None = Field(
        default=None, description="How alike the heads are; None if no attention has several."
    )


class AnalysisRecord(BaseModel):
    """The analyses of one model, or of several side by side."""

    model_config = RECORD

    title: str
    command: str = Field("", description="The command that made it; empty if none did.")
    part: str = Field(description="The part of the data, and how much it is.")
    runs: list[RunAnalysis] = Field(min_length=1)
    against: str | None = Field(
        default=None, description="Name of the run to which differences are given."
    )
    findings: list[str] = Field(
        [], description="What the analyses come to: a sentence for each run."
    )
    versions: dict[str, str] = {}
    machine: str = ""
