"""What a message has to say: the names and the numbers of what is wrong."""

import re
from collections.abc import Iterable


def assert_names(message: str, must_name: Iterable[str]) -> None:
    """The message has these words and numbers, and is no longer than a screen."""
    words = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in must_name]
    assert all(re.search(word, message) for word in words), (must_name, message)
    assert len(message) < 4_000
