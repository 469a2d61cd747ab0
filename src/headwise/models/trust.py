"""Whose code may run: what a configuration or a recipe names is imported only if the user says so.

A plan can name any class as `module:Class`, and importing a module runs its code. A model's
`config.json` and a run's recipe may come from others, so that naming is not enough. A class is used
if its module has been imported by the program itself, if it has been registered (`register`), or
while `trusting()` is open: the commands' `--trust`, and `trust_remote_code=True` of
`from_pretrained`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headwise.heads.system import System

# In the environment, so that the processes which a comparison starts know it too.
_VARIABLE = "HEADWISE_TRUST"

_registered: dict[str, type[System]] = {}


class NotTrustedError(ValueError):
    """A plan names a class whose module is not imported, and importing it is not allowed."""


def register(system: type[System], name: str | None = None) -> type[System]:
    """Lets plans, and so recipes and saved models, name a system of your own.

    A class whose module is imported needs no registering. One that a saved model knows under
    another name does: its module has been renamed, or it was written in a notebook.

    Args:
        system: the class.
        name: `module:Class`, as plans name it; by default where the class is now.

    Returns:
        The class, so that this also serves as a decorator.

    Raises:
        ValueError: no class of a system, or no such name.

    >>> import headwise as hw
    >>> class Plain(hw.MultiHeadAttention):
    ...     pass
    >>> hw.register(Plain, "my_former_module:Plain").__name__
    'Plain'
    >>> config = hw.CausalLMConfig(attention="my_former_module:Plain", embed_dim=16, num_heads=2)
    """
    if not (isinstance(system, type) and issubclass(system, System)):
        raise ValueError(f"system is {system!r}, expected a subclass of headwise.System")
    if name is None:
        name = f"{system.__module__}:{system.__qualname__}"
    module, colon, own = name.partition(":")
    if not (module and colon and own):
        raise ValueError(f"name is {name!r}, expected module:Class")
    _registered[name] = system
    return system


def registered(name: str) -> type[System] | None:
    """Returns the class that is registered under a name."""
    return _registered.get(name)


@contextmanager
def trusting() -> Iterator[None]:
    """While this context is open, modules that plans name are imported, which runs their code."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def is_trusting() -> bool:
    """Whether modules that plans name may be imported."""
    return os.environ.get(_VARIABLE) == "1"
