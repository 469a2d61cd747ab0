"""A model in evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While this context is open, a model is in evaluation mode; afterwards it is as before.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     model.training, model[0].training
    (False, False)
    >>> model.training, model[0].training, model[1].training
    (True, True, False)
    """
    # Each module by itself: parts of a model in training may be in evaluation.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
