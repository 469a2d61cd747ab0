"""One forward pass of a model, seen from inside: what its systems decide, and how heads read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.attention import Attention
from headwise.heads.system import Routing
from headwise.models.decisions import decisions
from headwise.models.sites import AttentionSite, attention_sites


@dataclass(frozen=True)
class Reading:
    """How the heads of one attention have read.

    Attributes:
        name: its path in the system; empty if it is the system itself.
        is_cross: whether its keys are of something else than its queries.
        weights: `(heads, queries, keys)` of the first sequence.
    """

    name: str
    is_cross: bool
    weights: Tensor


@dataclass
class Watched:
    """What one system has done in one pass."""

    place: AttentionSite
    routing: Routing | None = None
    readings: list[Reading] = field(default_factory=list)


@torch.no_grad()
def watch(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Any, list[Watched]]:
    """Runs a model once in evaluation mode on a batch of one sequence.

    Args:
        model: a headwise model, or any module that holds systems.
        inputs: arguments of its forward.

    Returns:
        What the model returns, and what each system has done, in the order in which they stand.
    """
    watched = {place.path: Watched(place) for place in attention_sites(model)}
    training = [module for module in model.modules() if module.training]
    hooks = []
    for seen in watched.values():
        for inner, module in seen.place.module.named_modules():
            if isinstance(module, Attention):
                hooks += _ask_for_weights(module, inner, seen)
    model.eval()
    try:
        with decisions(model) as decided:
            output = model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module in training:
            module.training = True
    for place, made in decided.items():
        watched[place.path].routing = made[-1]
    return output, list(watched.values())


def _ask_for_weights(module: Attention, name: str, seen: Watched) -> list[Any]:
    def before(
        module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**given, "need_weights": True, "average_attn_weights": False}

    def after(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Any) -> None:
        query = args[0] if args else given["query"]
        key = args[1] if len(args) > 1 else given.get("key")
        is_cross = key is not None and key is not query
        seen.readings.append(Reading(name, is_cross, out.weights[0].float().cpu()))

    return [
        module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]
