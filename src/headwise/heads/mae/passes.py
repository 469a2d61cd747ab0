"""What the last passes of a layer computed by, for the passes of checkpointing that repeat them.

A repeated pass has to give what the first gave, although running statistics have moved since, and
the step of training may be another.
"""

import warnings
from collections import deque
from typing import Any

import torch
from torch import Tensor

from headwise.ops.recompute import is_repeated

_MOST_PASSES = 64


class Passes:
    """The last passes of a layer. A copy of the layer has had none."""

    def __init__(self) -> None:
        self.last: deque[tuple[Tensor, dict[str, Any]]] = deque(maxlen=_MOST_PASSES)

    def facts(self, x: Tensor) -> dict[str, Any]:
        """Where a pass notes what it computes by, with `setdefault`: that of the pass it repeats.

        A pass that repeats another has the same input x, `(batch, time, width)`. By that the other
        is found, in whatever order passes are repeated.
        """
        mark = x.detach().mean((0, 1), dtype=torch.float32)
        if is_repeated():
            return self._find(mark)
        facts: dict[str, Any] = {}
        self.last.appendleft((mark, facts))
        return facts

    def _find(self, mark: Tensor) -> dict[str, Any]:
        alike = [
            (known, facts)
            for known, facts in self.last
            if known.shape == mark.shape and known.device == mark.device
        ]
        if alike:
            distances = (torch.stack([known for known, _ in alike]) - mark).abs().amax(-1)
            nearest = int(distances.argmin())  # the first of equal ones, which is the last pass
            # Not all operations of a GPU give the same digits again.
            if distances[nearest] <= 1e-3 * mark.abs().amax():
                return alike[nearest][1]
        warnings.warn(
            f"a backward pass repeats, as by gradient checkpointing, none of the last "
            f"{len(self.last)} passes of this layer: it computes by the running statistics of now. "
            f"Call backward() before {_MOST_PASSES} further passes",
            stacklevel=4,
        )
        return {}

    def __reduce__(self) -> tuple[type["Passes"], tuple[()]]:
        return Passes, ()
