"""What was found in the last attention mask of a model, whose layers all get the same.

So the host waits for the device once in a pass, and not once in a layer.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


class LastMask:
    """Keeps what was found in a mask until there is another. A copy starts anew.

    Attributes:
        warned: whether it was said that gates see more than a sliding window.
    """

    def __init__(self) -> None:
        self.warned = False
        self.mask: Callable[[], Any] = lambda: None
        self.found: dict[tuple[Any, ...], Any] = {}

    def ask(self, find: Callable[..., Found], mask: Any, *settings: Any) -> Found:
        """Returns `find(mask, *settings)`.

        Args:
            find: what is to be found.
            mask: the mask, or what stands in its place; not None.
            settings: further arguments of `find`.
        """
        if self.mask() is not mask:
            self.mask, self.found = weakref.ref(mask), {}
        key = find, *settings
        if key not in self.found:
            self.found[key] = find(mask, *settings)
        found: Found = self.found[key]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return LastMask, ()
