"""Which queries of a layer are padding, as its self-attention's mask says.

The mask is read where the layer hands it to its attention, not where the model is called: so it is
right too where a layer is computed again for its gradients, while the model has gone on.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache

from headwise.ops.masks import blocks
from headwise.pretrained.arguments import Arguments
from headwise.pretrained.layouts import AttentionModule


class QueryPadding:
    """Listens to a layer's self-attention and keeps which of the queries are padding.

    Args:
        place: the self-attention.

    Attributes:
        positions: boolean `(batch, queries)`, `True` at padding; None if nothing is.
    """

    def __init__(self, place: AttentionModule) -> None:
        self.positions: Tensor | None = None
        self.layer = place.layer
        self.arguments = Arguments(place.module, (place.layout.mask, place.layout.cache))
        self.handle = place.module.register_forward_pre_hook(self.listen, with_kwargs=True)

    def listen(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reads the mask of a call."""
        mask, cache = self.arguments.read(args, kwargs)
        if mask is None:
            self.positions = None
            return
        hidden = args[0] if args else kwargs["hidden_states"]
        cached = cached_positions(cache, self.layer)
        self.positions = query_padding(mask, hidden.size(1), cached)

    def remove(self) -> None:
        self.handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "positions": None}


def cached_positions(cache: Cache | None, layer: int) -> int | Tensor:
    """Returns how many positions a layer's cache holds before a call."""
    if cache is None:
        return 0
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    length: int | Tensor = cache.get_seq_length(layer)
    return length


def query_padding(mask: Any, queries: int, cached: int | Tensor = 0) -> Tensor:
    """Returns which queries are padding, from an attention mask as transformers makes them.

    A position attends to itself unless it is padding, whatever else it sees.

    Args:
        mask: `(batch, 1 or heads, 1 or queries, keys)`, boolean with `True` for what is attended,
            or float, added to the logits; `(batch, keys)`, not 0 for what is attended; or the
            `BlockMask` of flex attention.
        queries: how many queries there are.
        cached: how many positions there were before; keys may have further ones behind the queries.

    Returns:
        Boolean `(batch, queries)`, `True` at padding.

    >>> seen = torch.tensor([[0, 1, 1]])  # padding on the left
    >>> query_padding(seen, queries=2, cached=1).tolist()
    [[False, False]]
    >>> query_padding((seen[:, None, None] * torch.ones(3, 3).tril()).bool(), queries=3).tolist()
    [[True, False, False]]
    """
    if hasattr(mask, "mask_mod"):
        positions = torch.arange(queries, device=mask.kv_num_blocks.device)
        rows = torch.arange(mask.shape[0], device=positions.device).unsqueeze(1)
        return ~mask.mask_mod(rows, positions.new_zeros(()), positions, positions + cached)
    # A cache that slides holds fewer keys than there were positions: the queries are the last ones.
    most = mask.size(-1) - queries
    first = min(cached, most) if isinstance(cached, int) else cached.clamp(max=most)
    steps = torch.arange(queries, device=mask.device)
    columns = steps + first
    if mask.dim() == 2:
        own = mask[:, columns]
    else:
        own = mask[:, 0, steps if mask.size(-2) > 1 else 0, columns]
    added = own.is_floating_point() and mask.dim() == 4
    padding: Tensor = blocks(own) if added else own == 0
    return padding
