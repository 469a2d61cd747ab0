"""The base of all settings that recipes give.

Every number in them has a lower and an upper bound. The upper ones are far beyond what anybody
wants: they are there so that a slip of the finger is an error at once, and not an hour later.
"""

from pydantic import BaseModel, ConfigDict

LARGEST_SEED = 2**32 - 1  # that NumPy takes
MOST_STEPS = 1_000_000_000


class Settings(BaseModel):
    """Keys of a recipe and their values; other keys are errors, and so are nan and infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
