"""The base of all settings that recipes give.

Every number in them has a lower and an upper bound. The upper bounds are far above what anybody
wants: with them a mistyped number is an error at once, and not after an hour.
"""

from pydantic import BaseModel, ConfigDict

LARGEST_SEED = 2**32 - 1  # NumPy takes no larger one
MOST_STEPS = 1_000_000_000


class Settings(BaseModel):
    """Keys of a recipe and their values; other keys are errors, and so are nan and infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
