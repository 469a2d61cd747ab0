"""By which weights the heads of a model of transformers read: what its eager attention returns."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from headwise.models.sites import AttentionSite, attention_sites
from headwise.pretrained.attaching import gates_of
from headwise.transformers_internals import attending_eagerly

Note = Callable[[AttentionSite, Tensor], None]


@contextmanager
def attention_noted(model: nn.Module, note: Note) -> Iterator[None]:
    """While this context is open, attentions with a system over their heads note their weights.

    `note` is called after each call of an attention, with the place of its system and the weights
    of transformers' `output_attentions`, `(batch, heads, queries, keys)`. Models of transformers
    compute attention eagerly meanwhile, since faster functions make no weights. Where there is no
    such attention, nothing is noted.
    """
    places = {place.module: place for place in attention_sites(model)}
    attentions = {
        model.get_submodule(path): places[gates.system]
        for path, gates in gates_of(model).items()
        if gates.system in places
    }
    with ExitStack() as stack:
        for attention, place in attentions.items():
            stack.enter_context(attention.register_forward_hook(partial(_note, note, place)))
        if attentions:
            stack.enter_context(attending_eagerly(model))
        yield


def _note(note: Note, place: AttentionSite, module: nn.Module, args: object, output: Any) -> None:
    weights = output[-1] if isinstance(output, tuple) else None
    if isinstance(weights, Tensor) and weights.dim() == 4:
        note(place, weights.detach())
