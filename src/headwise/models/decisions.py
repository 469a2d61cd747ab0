"""What the systems of a model decide while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwise.heads.system import AttentionOutput, Routing
from headwise.models.compiling import run_as_written
from headwise.models.sites import AttentionSite, attention_sites


@contextmanager
def decisions(model: nn.Module) -> Iterator[dict[AttentionSite, list[Routing]]]:
    """While this context is open, each forward pass of a model notes what its systems decide.

    Args:
        model: a headwise model, or any module that holds systems of headwise or of your own.

    Yields:
        For each place, in the order in which they stand, the decisions of the passes so far, their
        tensors detached. Systems that decide nothing, such as standard attention, are left out.

    Raises:
        ValueError: the model holds no system.

    Example:
        >>> import headwise as hw
        >>> class Even(hw.MultiHeadAttention):
        ...     def combine(self, heads, inputs, choice):
        ...         output, _ = super().combine(heads, inputs, choice)
        ...         return output, hw.Routing(torch.ones_like(heads[..., 0]).transpose(1, 2))
        >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> layer.self_attn = Even(16, 4)
        >>> with decisions(layer) as decided:
        ...     y = layer(torch.randn(2, 5, 16))
        >>> [(place.path, [tuple(each.weights.shape) for each in routings])
        ...  for place, routings in decided.items()]
        [('self_attn', [(2, 5, 4)])]
    """
    places = attention_sites(model)
    if not places:
        raise ValueError(
            f"model is a {type(model).__name__} without any system of heads, expected at least one "
            f"module that derives from headwise.System"
        )
    decided: dict[AttentionSite, list[Routing]] = {}
    hooks = []
    for place in places:

        def note(
            module: nn.Module, args: object, out: AttentionOutput, place: AttentionSite = place
        ) -> None:
            if out.routing is not None:
                decided.setdefault(place, []).append(_detached(out.routing))

        hooks.append(place.module.register_forward_hook(note))
    try:
        with run_as_written():
            yield decided
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def decisions_by_position(model: nn.Module, **inputs: Tensor) -> dict[AttentionSite, Routing]:
    """Runs the model once in evaluation mode and returns what its systems decide at each position.

    Args:
        model: a model of one stack.
        inputs: arguments of its forward; the first is `(batch, time, ...)`.

    Returns:
        For each place whose system decides separately for each position, the decisions, their
        weights `(batch, time, units)`.
    """
    batch, time = next(iter(inputs.values())).shape[:2]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with decisions(model) as decided:
            model(**inputs)
    finally:
        # Each by itself: parts of a model in training may be in evaluation.
        for module in training:
            module.training = True
    return {
        place: made
        for place, (made, *_) in decided.items()
        if made.weights.dim() == 3 and made.weights.shape[:2] == (batch, time)
    }


def _detached(routing: Routing) -> Routing:
    loss = None if routing.loss is None else routing.loss.detach()
    return routing._replace(weights=routing.weights.detach(), loss=loss)
