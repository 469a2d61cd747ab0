"""Where a system stands, as records say it."""

from pydantic import BaseModel, Field

from headwise.models.plan import system_name
from headwise.models.sites import AttentionSite, stack_of
from headwise.tasks.outcome import RECORD


class Where(BaseModel):
    """A system and its place in a model."""

    model_config = RECORD

    path: str = Field(description="The path of the module in the model.")
    site: str = Field(description="encoder_self, decoder_self, decoder_cross, or empty.")
    layer: int = Field(description="The layer, or the number of the system, counted from 0.")
    system: str = Field(description="The system's name in plans, a key of the run's `words`.")
    whole_layer: bool = Field(description="Whether the system takes the place of a layer.")

    @property
    def stack(self) -> str:
        """The stack of the site: `encoder` or `decoder`; empty in any other model."""
        return stack_of(self.site)

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
