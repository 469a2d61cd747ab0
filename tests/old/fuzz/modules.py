"""Every system's self-attention, built by name: what later tokens, padding and caches must keep."""

from typing import Any

import test_tim
from systems import SYSTEMS

TIM = "tim, "
MODULES = [*SYSTEMS, *(TIM + form for form in test_tim.FORMS if form not in test_tim.DECODERS)]
# Steps of training, of which only MAE has several; None is evaluation.
STEPS = (None, "joint", "gate", "expert", "expert by position")


def build(name: str, step: str | None = None) -> Any:
    """Returns a module with random weights and without dropout, in evaluation or in a step."""
    if name.startswith(TIM):
        return test_tim.build(name.removeprefix(TIM), train=step is not None)
    module = SYSTEMS[name].build(train=step is not None)
    if step is not None and "mae" in name:
        module.step = step
    return module
