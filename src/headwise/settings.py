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
    def _check_numbers(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        for name, field in cls.model_fields.items():
            kinds = {field.annotation, *get_args(field.annotation)}
            takes_numbers_alone = kinds & {int, float} and bool not in kinds
            value = given.get(name)
            if takes_numbers_alone and isinstance(value, bool):  # pydantic would take true for 1
                raise ValueError(f"{name} is {str(value).lower()}, expected a number")
        return given


class FrozenSettings(Settings):
    """Settings that cannot be changed once they are read."""

    model_config = ConfigDict(frozen=True)
