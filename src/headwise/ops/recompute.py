"""Computations that gradient checkpointing repeats, and what is to happen in them only once."""

import warnings
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.utils.module_tracker import ModuleTracker

_tracker = ModuleTracker()  # hooks nothing: it is only asked whether a backward pass is under way


def is_repeated() -> bool:
    """Whether the computation around has been done before, and is done again: in a backward pass.

    That is so in `torch.utils.checkpoint`, reentrant or not, and in whatever calls it.
    """
    return not torch.compiler.is_compiling() and bool(_tracker.is_bw)


class Passes:
    """The last passes of a layer, and what they computed by; a copy of the layer has had none.

    A repeated pass has to give what the first gave, although running statistics have moved since,
    and the step of training may be another.
    """

    most = 64

    def __init__(self) -> None:
        self.last: deque[tuple[Tensor, dict[str, Any]]] = deque(maxlen=self.most)

    def facts(self, x: Tensor) -> dict[str, Any]:
        """Where a pass notes what it computes by, with `setdefault`: that of the pass it repeats.

        A pass that repeats another has the same input x, `(batch, time, width)`. By that the other
        is found, in whatever order passes are repeated.
        """
        mark = x.detach().mean((0, 1), dtype=torch.float32)
        if not is_repeated():
            self.last.appendleft((mark, {}))
            return self.last[0][1]
        place = (mark.shape, mark.device)
        alike = [
            (known, facts) for known, facts in self.last if (known.shape, known.device) == place
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
            f"Call backward() before {self.most} further passes",
            stacklevel=3,
        )
        return {}

    def __reduce__(self) -> tuple[type["Passes"], tuple[()]]:
        return Passes, ()
