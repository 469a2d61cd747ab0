"""The base of all settings that recipes give.

Every number in them has a lower and an upper bound. The upper bounds are far above what anybody
wants: with them a mistyped number is an error at once, and not after an hour.
"""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

LARGEST_SEED = 2**32 - 1  # NumPy takes no larger one
MOST_STEPS = 1_000_000_000


class Settings(BaseModel):
    """Keys of a recipe and their values; other keys are errors, and so are nan and infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _check_no_truth_for_a_number(cls, given: Any) -> Any:
        # Pydantic takes true for 1.
        for name, value in given.items() if isinstance(given, Mapping) else ():
            annotation = cls.model_fields[name].annotation if name in cls.model_fields else None
            kinds = {annotation, *get_args(annotation)}
            if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
                raise ValueError(f"{name} is {str(value).lower()}, expected a number")
        return given


class FrozenSettings(Settings):
    """Settings that cannot be changed once they are read."""

    model_config = ConfigDict(frozen=True)
