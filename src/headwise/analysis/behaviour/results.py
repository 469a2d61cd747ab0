"""The record of an analysis: what `analysis.json` holds and the page is made of."""

from pydantic import BaseModel, Field

from headwise.analysis.behaviour.likeness import ModelLikeness
from headwise.heads.words import Words
from headwise.tasks.outcome import RECORD


class RunAnalysis(BaseModel):
    """What the heads of one model do on one part of the data."""

    model_config = RECORD

    name: str = Field(description="Name of the run, as the page shows it.")
    words: dict[str, Words] = Field(description="A system's name to the words for its decisions.")
    sequences: int = Field(description="Number of sequences that were read.")
    likeness: ModelLikeness | None = Field(
        None, description="How alike the heads are. None if no attention has several."
    )


class AnalysisRecord(BaseModel):
    """The analyses of one model, or of several side by side."""

    model_config = RECORD

    title: str
    command: str
    part: str = Field(description="The part of the data, and how much it is.")
    runs: list[RunAnalysis] = Field(min_length=1)
    versions: dict[str, str] = {}
    machine: str = ""
