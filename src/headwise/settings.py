"""The base of all settings that recipes give, and how they are merged."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

LARGEST_SEED = 2**32 - 1  # NumPy takes no larger one
MAX_STEPS = 1_000_000_000
_OTHER_LENGTH = {"max_steps": "epochs", "epochs": "max_steps"}


class Settings(BaseModel):
    """Keys of a recipe and their values; other keys are errors, and so are nan and infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for name, field in cls.model_fields.items():
            value = values.get(name)
            types = set(re.findall(r"\w+", str(field.annotation)))
            if isinstance(value, bool) and types & {"int", "float"} and "bool" not in types:
                # pydantic would take true for 1
                raise ValueError(f"{name} is {str(value).lower()}, expected a number")
        return values


class FrozenSettings(Settings):
    """Settings that cannot be changed once they are read."""

    model_config = ConfigDict(frozen=True)


def merge(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with changes: mappings key by key, a plan of attention and lists as a whole.

    A training is as long as the change says, in steps or in epochs.

    >>> merge({"model": {"layers": 2, "attention": {"encoder_self": "mae"}}}, {"model": {
    ...     "attention": {"decoder_cross": "mae"}}})
    {'model': {'layers': 2, 'attention': {'decoder_cross': 'mae'}}}
    >>> merge({"max_steps": 5, "seed": 1}, {"epochs": 2})
    {'seed': 1, 'epochs': 2}
    """
    merged = dict(settings)
    for key, value in changes.items():
        other_length = _OTHER_LENGTH.get(key)
        if other_length is not None and value is not None and other_length not in changes:
            merged.pop(other_length, None)
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping) and key != "attention":
            value = merge(before, value)
        merged[key] = value
    return merged
