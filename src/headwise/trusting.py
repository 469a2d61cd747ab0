"""Whether modules that plans name may be imported: the commands' `--trust`.

`headwise.models.trust` says what it means; this is apart from it so that commands start at once.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# In the environment, so that the processes which a comparison starts know it too.
TRUST = "HEADWISE_TRUST"


@contextmanager
def trusting() -> Iterator[None]:
    """While this context is open, modules that plans name are imported, which runs their code."""
    before = os.environ.get(TRUST)
    os.environ[TRUST] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRUST]
        else:
            os.environ[TRUST] = before


def is_trusting() -> bool:
    """Whether modules that plans name may be imported."""
    return os.environ.get(TRUST) == "1"
