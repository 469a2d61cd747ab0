"""Whose code may run: what a configuration or a recipe names is imported only if the user says so.

A plan can name any class as `module:Class`, and importing a module runs its code. A model's
`config.json` and a run's recipe may come from others, so that naming is not enough. A class is used
if its module has been imported by the program itself, if it has been registered
(`register_system`), or while `trusting()` is open: the commands' `--trust`, and
`trust_remote_code=True` of `from_pretrained`.
"""

from headwise.heads.system import System
from headwise.trusting import is_trusting, trusting

__all__ = ["NotTrustedError", "is_trusting", "register_system", "registered", "trusting"]

_registered: dict[str, type[System]] = {}


class NotTrustedError(ValueError):
    """A plan names a class whose module is not imported, and importing it is not allowed."""


def register_system(system: type[System], name: str | None = None) -> type[System]:
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
    >>> hw.systems.register_system(Plain, "my_former_module:Plain").__name__
    'Plain'
    >>> config = hw.CausalLMConfig(attention="my_former_module:Plain", embed_dim=16, num_heads=2)
    """
    if not (isinstance(system, type) and issubclass(system, System)):
        raise ValueError(f"system is {system!r}, expected a subclass of headwise.systems.System")
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
