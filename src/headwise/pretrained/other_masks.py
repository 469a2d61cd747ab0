"""Attention masks that hide something else than padding and, in a decoder, the future.

Such are those of prefixes, chunks and packed texts. Gates look at these alone.
"""

from torch import Tensor, nn

from headwise.ops.masks import blocks, causal_mask, what_is_hidden
from headwise.pretrained.padding import query_padding


def other_mask(
    mask: Tensor, batch: int, queries: int, is_causal: bool, sliding: int | None
) -> Tensor | None:
    """Returns what a mask hides, if that is not as usual.

    Args:
        mask: `(batch, 1 or heads, queries, keys)`, as in `query_padding`, of a call before which
            nothing was cached.
        batch: how many sequences there are.
        queries: how many queries there are; keys may have further ones behind them.
        is_causal: whether the future is usually hidden.
        sliding: how many positions are usually seen then; None for all.

    Returns:
        Boolean `(batch, 1, queries, queries)`, `True` = not attended; None if it is padding alone,
        and in a decoder the future and what is out of a sliding window.
    """
    of_heads = blocks(mask) if mask.is_floating_point() else mask == 0
    blocked = of_heads.all(1)[..., :queries]  # (batch, queries, queries)
    usual = blocked
    if is_causal and sliding is not None:
        usual = blocked & causal_mask(queries, queries, -sliding, mask.device)
    hidden = what_is_hidden(usual, query_padding(mask, queries), 0)
    as_usual = hidden.future and not hidden.past if is_causal else not hidden.anything
    return None if as_usual else blocked.expand(batch, -1, -1).unsqueeze(1)


def sliding_window(attention: nn.Module) -> int | None:
    """Returns how many of the last positions an attention of transformers sees; None for all."""
    config = getattr(attention, "config", None)
    window: int | None = getattr(
        attention, "sliding_window", getattr(config, "sliding_window", None)
    )
    return window
