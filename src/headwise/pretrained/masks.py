"""What the attention masks of a layer say: padding, packed texts, and what else they hide.

A mask is read where a layer hands it to its attention, not where the model is called: so it is
right too where a layer is computed again for its gradients, while the model has gone on.
"""

import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache

from headwise.ops.masks import blocks, causal_mask
from headwise.ops.packing import PackedTexts, packed_from
from headwise.pretrained.layouts import AttentionModule
from headwise.transformers_internals import CACHE, attn_implementation

_COMPILED = (
    "texts are packed into a row, which gates over the heads of a compiled model cannot take "
    "apart: do not compile the model, or give each text a row of its own"
)

NO_PAGES = (
    "has no continuous batching while it is gated, recorded or ablated, or where layers have fewer "
    "heads of keys than its config says, since pages hold keys and values alone, and as many in "
    "each layer: call generate() with a batch of prompts, padded on the left"
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
            args[place] if 0 <= place < len(args) else _named(name, kwargs)
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


class QueryPadding:
    """Listens to a layer's self-attention and keeps which of the queries are padding: `now`."""

    def __init__(self, place: AttentionModule, last: LastMask) -> None:
        self.now = _Padding()
        self.users = 0  # how many gates read it
        self.layer = place.layer
        self.is_causal = place.site != "encoder_self"
        self.sliding = sliding_window(place.module)
        self.last = last
        names = (place.layout.mask, place.layout.cache, "position_ids")
        self.arguments = Arguments(place.module, names)
        self.handle = place.module.register_forward_pre_hook(self.listen, with_kwargs=True)

    def listen(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reads the mask of a call."""
        hidden, mask, cache, position_ids = self.arguments.read(args, kwargs)
        (batch, queries), cached = hidden.shape[:2], cached_positions(cache, self.layer)
        self.now.positions = padding_of(hidden, mask, cached)
        self.now.texts = self.now.hidden = None
        if queries == 1 or not isinstance(cached, int) or cached:
            return  # a cache has one text a row
        if torch.compiler.is_compiling():
            later = None if mask is None else later_texts(mask, self.now.positions, queries)
            if later is not None and not torch.compiler.is_exporting():
                # How many texts there are is not known then; this waits for no device.
                torch._assert_async(~later.any(), _COMPILED)
            return
        if mask is not None:
            self.now.texts = self.last.ask(_texts_in, mask, batch, queries)
        elif position_ids is not None and _is_flash(attention):
            # Such kernels are told of packed texts by positions, and get no mask.
            self.now.texts = self.last.ask(_texts_at, position_ids, batch)
        if mask is not None and self.now.texts is not None:
            about = self.now.texts, self.now.positions, self.is_causal, self.sliding
            self.now.hidden = self.last.ask(hidden_within, mask, *about)
        if self.now.texts is not None and cache is not None:
            raise ValueError(
                "the attention mask separates texts that are packed into a row, and there is a "
                "cache, in which gates over heads remember one text a row: pass use_cache=False, "
                "or give each text a row of its own"
            )

    def remove(self) -> None:
        self.handle.remove()


class _Padding(threading.local):
    """What a thread has found in the mask of its last call. A copy starts anew.

    Attributes:
        positions: boolean `(batch, queries)`, `True` at padding; None if nothing is.
        texts: the texts that are packed into the rows; None if each is one.
        hidden: row, query and key of a position that the mask hides from one of the same text,
            though it is none that systems leave out by themselves; None if there is none.
    """

    positions: Tensor | None = None
    texts: PackedTexts | None = None
    hidden: tuple[int, int, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Padding, ()


def cached_positions(cache: Cache | None, layer: int) -> int | Tensor:
    """How many positions a layer's cache holds before a call."""
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
    padding: Tensor = blocks(own) if added else own == 0
    return padding


def later_texts(mask: Any, padding: Tensor | None, queries: int) -> Tensor | None:
    """Where other texts begin in a row: boolean `(batch, queries - 1)`, of the positions from 1 on.

    There a position does not see the one before it, padding left out. None if the mask, as in
    `query_padding`, is the same for all queries. Keys may have further positions behind them.

    >>> seen = torch.tensor([[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]).bool()
    >>> later_texts(seen, None, queries=3).tolist()
    [[False, True]]
    """
    is_block_mask = hasattr(mask, "mask_mod")
    if not is_block_mask and (mask.dim() != 4 or mask.size(-2) != queries):
        return None
    device = mask.kv_num_blocks.device if is_block_mask else mask.device
    steps = torch.arange(queries, device=device)
    rows = torch.arange(mask.shape[0], device=device).unsqueeze(1)
    real = torch.ones_like(rows + steps, dtype=torch.bool) if padding is None else ~padding
    # The last position up to each one that is no padding; -1 if there is none.
    last = torch.where(real, steps, -1).cummax(1).values
    before, own = last[:, :-1], steps[1:]
    if is_block_mask:
        sees = mask.mask_mod(rows, steps.new_zeros(()), own, before.clamp(min=0))
    else:
        added = mask[rows, :, own, before.clamp(min=0)]  # (batch, queries - 1, 1 or heads)
        sees = (~blocks(added) if added.is_floating_point() else added != 0).any(-1)
    return real[:, 1:] & (before >= 0) & ~sees


def hidden_within(
    mask: Any, texts: PackedTexts, padding: Tensor | None, is_causal: bool, sliding: int | None
) -> tuple[int, int, int] | None:
    """The first row, query and key of one packed text where a mask, as in `later_texts`, hides it.

    Padding is left out, and in a decoder the future and what is out of a window that slides. The
    `BlockMask` of a decoder, whose rows may be very long, is taken to hide nothing else.

    >>> mask = torch.tensor([[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]).bool()
    >>> texts = PackedTexts(torch.tensor([[True, False, True]]))
    >>> hidden_within(mask, texts, None, True, None), hidden_within(mask, texts, None, False, None)
    (None, (0, 0, 1))
    """
    number = texts.number
    steps = torch.arange(number.size(1), device=number.device)
    if hasattr(mask, "mask_mod"):
        if is_causal:
            return None
        rows = torch.arange(mask.shape[0], device=number.device).view(-1, 1, 1)
        hides = ~mask.mask_mod(rows, steps.new_zeros(()), steps.unsqueeze(1), steps)
    else:
        of_heads = blocks(mask) if mask.is_floating_point() else mask == 0
        hides = of_heads.all(1)[..., : len(steps)]  # (batch, queries, queries)
    hides = hides & (number.unsqueeze(1) == number.unsqueeze(2))
    if padding is not None:
        hides = hides & ~(padding.unsqueeze(1) | padding.unsqueeze(2))
    if is_causal:
        hides = hides & ~causal_mask(len(steps), len(steps), device=hides.device)
        if sliding is not None:
            hides = hides & causal_mask(len(steps), len(steps), -sliding, hides.device)
    places = hides.nonzero()
    if not len(places):
        return None
    row, query, key = places[0].tolist()
    return row, query, key


def other_mask(
    mask: Tensor, batch: int, queries: int, is_causal: bool, sliding: int | None
) -> Tensor | None:
    """What a mask `(batch, 1 or heads, queries, keys)` hides, if it is of prefixes, chunks, texts.

    Boolean `(batch, 1, queries, queries)`, `True` = not attended; None if it is padding alone, and
    in a decoder the future and what is out of a window that slides over `sliding` positions.
    """
    of_heads = blocks(mask) if mask.is_floating_point() else mask == 0
    blocked = of_heads.all(1)[..., :queries]  # (batch, queries, queries)
    usual = blocked
    if is_causal and sliding is not None:
        usual = blocked & causal_mask(queries, queries, -sliding, mask.device)
    padding = query_padding(mask, queries)  # what is hidden there, or from there, does not count
    unusual = usual != causal_mask(queries, queries, device=mask.device) if is_causal else usual
    unusual = unusual & ~(padding.unsqueeze(1) | padding.unsqueeze(2))
    return blocked.expand(batch, -1, -1).unsqueeze(1) if unusual.any() else None


def check_meaning(mask: Tensor, path: str) -> None:
    """Raises `ValueError` for a boolean mask, as in `other_mask`, that says what is hidden.

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


def sliding_window(attention: nn.Module) -> int | None:
    """How many of the last positions an attention of transformers sees; None for all."""
    config = getattr(attention, "config", None)
    window: int | None = getattr(
        attention, "sliding_window", getattr(config, "sliding_window", None)
    )
    return window or None  # some models say 0 for all


def _texts_in(mask: Any, batch: int, queries: int) -> PackedTexts | None:
    later = later_texts(mask, query_padding(mask, queries), queries)
    return None if later is None else packed_from(later.expand(batch, -1))


def _texts_at(position_ids: Tensor, batch: int) -> PackedTexts | None:
    return packed_from((position_ids.diff(dim=-1) != 1).expand(batch, -1))


def _is_flash(attention: nn.Module) -> bool:
    return "flash" in (attn_implementation(getattr(attention, "config", None)) or "")


def _named(name: str, kwargs: dict[str, Any]) -> Any:
    # Callers may still give a cache by its former name.
    return kwargs.get(name, kwargs.get("past_key_values") if name == CACHE else None)
