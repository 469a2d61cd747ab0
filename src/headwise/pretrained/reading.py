"""By which weights the heads of a model of transformers read: what its eager attention returns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.models.sites import AttentionSite, attention_sites
from headwise.pretrained.attaching import gates_of
from headwise.transformers_internals import attn_implementation

Note = Callable[[AttentionSite, Tensor], None]


@contextmanager
def attention_noted(model: nn.Module, note: Note) -> Iterator[None]:
    """While this context is open, attentions with a system over their heads note their weights.

    These are the weights of transformers' `output_attentions`. Models compute attention eagerly
    meanwhile, since faster functions make no weights; afterwards they compute as before. An
    attention that returns no weights notes none.

    Args:
        model: a model with a system over its heads; of others nothing is noted.
        note: called after each call of an attention, with the place of its system and the weights
            `(batch, heads, queries, keys)`.
    """
    gates = gates_of(model)
    if not gates:
        yield
        return
    places = {place.module: place for place in attention_sites(model)}
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    before = [attn_implementation(each.config) or "eager" for each in models]
    hooks = []
    try:
        for each in models:
            each.set_attn_implementation("eager")
        for path, each_gates in gates.items():
            if place := places.get(each_gates.system):
                hook = partial(_note_weights, note, place)
                hooks.append(model.get_submodule(path).register_forward_hook(hook))
        yield
    finally:
        for hooked in hooks:
            hooked.remove()
        for each, name in zip(models, before, strict=True):
            each.set_attn_implementation(name)


def _note_weights(
    note: Note, place: AttentionSite, attention: nn.Module, args: object, output: Any
) -> None:
    weights = output[-1] if isinstance(output, tuple) else None
    if isinstance(weights, Tensor) and weights.dim() == 4:
        note(place, weights.detach())
