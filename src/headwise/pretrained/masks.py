"""What the attention masks of a layer say: which positions are padding, and what else they hide.

A mask is read where a layer hands it to its attention, not where the model is called: so it is
right too where a layer is computed again for its gradients, while the model has gone on.
"""

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache

from headwise.heads.attention import causal_mask, hides

CACHE = "cache"  # how models of transformers and their attentions name their argument of keys

NO_PAGES = (
    "has no continuous batching while it is gated, recorded or ablated, or where layers have fewer "
    "heads of keys than its config says, since pages hold keys and values alone, and as many in "
    "each layer: call generate() with a batch of prompts, padded on the left"
)
_COMPILED = (
    "the attention mask hides more than padding and the future, as that of packed texts does, "
    "which gates over heads cannot take into account in a compiled model: do not compile it, or "
    "give each text a row of its own"
)
# What gates that look at other positions cannot do over a model that is not headwise's own.
WAYS_OUT = (
    "pass use_cache=False, have gates look at their own position alone (gate_window=1 of MAE's), "
    "or convert the model: headwise.from_transformers(model).with_attention('mae')"
)

Found = TypeVar("Found")


class Arguments:
    """Reads arguments of a module's forward: its first, the hidden states, and those of `names`."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        there = inspect.signature(module.forward).parameters.values()
        places = [each.name for each in there if each.kind <= each.POSITIONAL_OR_KEYWORD]
        places = places or ["hidden_states"]  # a tool's wrapper may name none
        names = places[0], *names
        self.places = {name: places.index(name) if name in places else -1 for name in names}

    def read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments of a call; None for those that are not given or not there."""
        return [
            args[place] if 0 <= place < len(args) else kwargs.get(name)
            for name, place in self.places.items()
        ]


class LastMask:
    """Keeps what was found in the last mask of a model, until there is another. A copy starts anew.

    All layers get the same: so the host waits for the device once in a pass, not once in a layer.
    """

    def __init__(self) -> None:
        self.warned = self.checked = False
        self.last: tuple[Callable[[], Any], Any, dict[Any, Any]] = (lambda: None, None, {})

    def ask(self, find: Callable[..., Found], mask: Any, *settings: Any) -> Found:
        """`find(mask, *settings)`, computed once for a mask, which is not None."""
        if torch.compiler.is_compiling():
            return find(mask, *settings)
        if isinstance(mask, Tensor) and mask.is_inference():
            return find(mask, *settings)  # it does not count its changes in place, as others do
        version = getattr(mask, "_version", None)  # a `BlockMask` has none, and does not change
        last, before, answers = self.last  # at once: other threads have other masks
        if last() is not mask or before != version:
            answers = {}
            self.last = weakref.ref(mask), version, answers
        key = find, *settings
        if key not in answers:
            answers[key] = find(mask, *settings)
        found: Found = answers[key]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return LastMask, ()


def cached_positions(cache: Cache | None, layer: int) -> int | Tensor:
    """How many positions a layer's cache holds; a tensor where the cache has a fixed size."""
    if cache is None:
        return 0
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if not hasattr(cache, "get_seq_length"):
        raise NotImplementedError(f"the model {NO_PAGES}")
    length: int | Tensor = cache.get_seq_length(layer)
    return length


def padding_of(hidden: Tensor, mask: Any, cached: int | Tensor) -> Tensor | None:
    """`query_padding` of each row of `(batch, queries, width)`; a mask may have one for all."""
    batch, queries = hidden.shape[:2]
    return None if mask is None else query_padding(mask, queries, cached).expand(batch, -1)


def query_padding(mask: Any, queries: int, cached: int | Tensor = 0) -> Tensor:
    """Returns which queries are padding, read from an attention mask that transformers has made.

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
        seen: Tensor = mask.mask_mod(rows, positions.new_zeros(()), positions, positions + cached)
        return ~seen.expand(len(rows), queries)  # it may not have looked at rows, or at positions
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
    padding: Tensor = hides(own) if added else own == 0
    return padding


class Hidden(NamedTuple):
    """What a mask hides, where that is more than padding and, in a decoder, the future.

    Attributes:
        positions: boolean `(1 or batch, queries, queries)`, `True` where no head may look.
        is_causal: whether all of the future is hidden.
    """

    positions: Tensor
    is_causal: bool


def other_mask(mask: Any, queries: int, is_causal: bool, sliding: int | None) -> Hidden | None:
    """What a mask hides, if that is more than usual, as where texts are packed, or have prefixes.

    Args:
        mask: as in `query_padding`.
        queries: how many queries there are, which are the first keys too.
        is_causal: it is usual that the future is hidden, and nothing else but padding.
        sliding: how many of the last positions a causal position sees, if that has a limit.

    Returns:
        None if that is as usual. In compiled code, which cannot know, None too, with an error if it
        is not.

    >>> mask = torch.tensor([[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]).bool()
    >>> found = other_mask(mask, 3, is_causal=True, sliding=None)
    >>> found.positions.int().tolist(), found.is_causal
    ([[[0, 1, 1], [0, 0, 1], [1, 1, 0]]], True)
    >>> other_mask(mask, 3, is_causal=True, sliding=1) is None
    True
    """
    if hasattr(mask, "mask_mod"):
        steps = torch.arange(queries, device=mask.kv_num_blocks.device)
        rows = torch.arange(mask.shape[0], device=steps.device).view(-1, 1, 1)
        seen: Tensor = mask.mask_mod(rows, steps.new_zeros(()), steps.unsqueeze(1), steps)
        hidden = ~seen.expand(len(rows), queries, queries)
    elif mask.dim() == 4 and mask.size(-2) == queries:
        of_heads = hides(mask) if mask.is_floating_point() else mask == 0
        hidden = of_heads.all(1)[..., :queries]
    else:
        return None
    future = causal_mask(queries, queries, device=hidden.device)
    usual = future if is_causal else torch.zeros_like(future)
    within = hidden
    if is_causal and sliding is not None:
        within = hidden & causal_mask(queries, queries, -sliding, hidden.device)
    padding = query_padding(mask, queries)  # what is hidden there, or from there, does not count
    real = ~(padding.unsqueeze(1) | padding.unsqueeze(2))
    differs = ((within != usual) & real).any()
    if torch.compiler.is_compiling():
        refuse(differs, _COMPILED)
        return None
    if not differs:
        return None
    return Hidden(hidden, is_causal and not (future & ~hidden & real).any())


def check_meaning(mask: Tensor, path: str) -> None:
    """Raises `ValueError` for a boolean mask, as in `query_padding`, that says what is hidden.

    It hides a position of a text from itself and shows it to those before. Masks that say what is
    attended hide no position from itself but padding, which they hide from all.
    """
    queries = mask.size(-2)
    seen = mask[:, 0, :, :queries].any(1)
    if mask.dtype == torch.bool and (seen & query_padding(mask, queries)).any():
        raise ValueError(
            f"the attention mask of {path!r} hides positions from themselves and not from others, "
            f"expected one that is True at what is attended: of one that is True at what is hidden "
            f"gates that average over positions see the padding, not the text. Take a system that "
            f"decides at each position by itself"
        )


def refuse_packed(attention: nn.Module, position_ids: Tensor, path: str) -> None:
    """Raises `ValueError` where positions tell a flash kernel of packed texts, without a mask."""
    kernel = getattr(getattr(attention, "config", None), "_attn_implementation", None) or ""
    if "flash" in kernel:
        refuse(
            (position_ids.diff(dim=-1) != 1).any(),
            f"position_ids say that several texts are packed into a row, and flash attention gets "
            f"no mask that the gates over the heads at {path!r} could read: they would average "
            f"over all of the row. Give each text a row of its own, or have the model attend by "
            f"'sdpa', or the gates look at their own position alone (gate_window=1 of MAE's)",
        )


def refuse(wrong: Tensor, message: str) -> None:
    """Raises `ValueError` if a boolean scalar is True; compiled code, which waits for no device,
    raises `RuntimeError`."""
    if torch.compiler.is_exporting():
        return
    if torch.compiler.is_compiling():
        torch._assert_async(~wrong, message)
    elif wrong:
        raise ValueError(message)


def sliding_window(attention: nn.Module) -> int | None:
    """How many of the last positions an attention of transformers sees; None for all."""
    config = getattr(attention, "config", None)
    window: int | None = getattr(
        attention, "sliding_window", getattr(config, "sliding_window", None)
    )
    return window or None  # some models say 0 for all
