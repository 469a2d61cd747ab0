"""What models of transformers decide about their heads by themselves: experts, gates of outputs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.heads.system import Routing, System
from headwise.models.decisions import Decisions
from headwise.models.sites import AttentionSite
from headwise.ops.recompute import is_repeated
from headwise.pretrained.masks import Arguments, cached_positions, padding_of
from headwise.transformers_internals import CACHE

# By the name of the attention's class: the path of the module whose output says what is decided.
_DECIDED_BY = {"JetMoeAttention": "experts.router", "Qwen3NextAttention": "q_proj"}


def native_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The attentions of a model that decide about their heads by themselves, by their paths."""
    return {
        path: module
        for path, module in model.named_modules()
        if type(module).__name__ in _DECIDED_BY
    }


@contextmanager
def native_decisions(model: nn.Module, decided: Decisions) -> Iterator[None]:
    """While this context is open, what such attentions decide is added to `decided`.

    JetMoE's experts have the weights `(batch, time, experts)` by which a position uses them, 0 for
    those that it has not chosen, and `indices`. The gates of Qwen3-Next are `σ(g)`, one for each
    element of a head's output: the weights `(batch, time, heads)` are their means over a head.
    """
    with ExitStack() as stack:
        for number, (path, attention) in enumerate(native_attentions(model).items()):
            name = type(attention).__name__
            layer: int = getattr(attention, "layer_idx", number)
            # Such models are decoders. Of the module, which is no system, nothing is read.
            place = AttentionSite("decoder_self", layer, cast(System, attention), path)
            call = _Call(attention, layer)
            read = _experts if name == "JetMoeAttention" else _gates
            note = partial(_note, decided, place, call, read)
            decides = attention.get_submodule(_DECIDED_BY[name])
            stack.enter_context(attention.register_forward_pre_hook(call.listen, with_kwargs=True))
            stack.enter_context(decides.register_forward_hook(note))
        yield


class _Call:
    """The call of an attention that is under way: its sizes, and which positions are padding."""

    def __init__(self, attention: nn.Module, layer: int) -> None:
        self.layer = layer
        self.arguments = Arguments(attention, ("attention_mask", CACHE))
        self.shape: tuple[int, int] = (0, 0)
        self.padding: Tensor | None = None

    def listen(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, mask, cache = self.arguments.read(args, kwargs)
        self.shape = hidden.shape[:2]
        self.padding = padding_of(hidden, mask, cached_positions(cache, self.layer))


def _note(
    decided: Decisions,
    place: AttentionSite,
    call: _Call,
    read: Callable[[Any, Any, tuple[int, int]], Routing],
    module: nn.Module,
    args: object,
    output: Any,
) -> None:
    if not is_repeated():
        with torch.no_grad():
            routing = read(place.module, output, call.shape)
        decided.setdefault(place, []).append(routing._replace(padding=call.padding))


def _experts(attention: Any, output: tuple[Any, ...], shape: tuple[int, int]) -> Routing:
    logits = output[-1].detach().unflatten(0, shape)  # (batch, time, experts)
    best, indices = logits.topk(attention.top_k, dim=-1)
    weights = torch.zeros_like(logits).scatter(-1, indices, best.softmax(-1))
    return Routing(weights, indices)


def _gates(attention: Any, output: Tensor, shape: tuple[int, int]) -> Routing:
    heads = output.detach().view(*shape, -1, 2 * attention.head_dim)  # queries, then gates
    return Routing(heads[..., attention.head_dim :].sigmoid().mean(-1))
