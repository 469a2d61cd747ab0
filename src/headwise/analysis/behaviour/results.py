"""The record of an analysis: what `analysis.json` holds and the page is made of."""

from pydantic import BaseModel, Field

from headwise.heads.words import Words
from headwise.models.plan import system_name
from headwise.models.sites import AttentionSite
from headwise.tasks.outcome import RECORD


class Where(BaseModel):
    """A system and its place in a model."""

    model_config = RECORD

    path: str = Field(description="The path of the module in the model.")
    site: str = Field(description="encoder_self, decoder_self, decoder_cross, or empty.")
    layer: int = Field(description="The layer, or the number of the system, counted from 0.")
    system: str = Field(description="The system's name in plans, a key of `RunAnalysis.words`.")
    whole_layer: bool = Field(description="Whether the system takes the place of a layer.")

    @classmethod
    def of(cls, place: AttentionSite) -> "Where":
        """Where a system stands."""
        return cls(
            path=place.path,
            site=place.site,
            layer=place.layer,
            system=system_name(type(place.module)),
            whole_layer=place.module.replaces == "layer",
        )


class RunAnalysis(BaseModel):
    """What the heads of one model do on one part of the data."""

    model_config = RECORD

    name: str = Field(description="Name of the run, as the page shows it.")
    words: dict[str, Words] = Field(description="A system's name to the words for its decisions.")
    sequences: int = Field(description="Number of sequences that were read.")


class AnalysisRecord(BaseModel):
    """The analyses of one model, or of several side by side."""

    model_config = RECORD

    title: str
    command: str
    part: str = Field(description="The part of the data, and how much it is.")
    runs: list[RunAnalysis] = Field(min_length=1)
    versions: dict[str, str] = {}
    machine: str = ""
