"""Tokens and their positions as vectors: what a stack of layers reads.

Positions are sinusoids, as in Vaswani et al. 2017, *Attention Is All You Need*,
https://arxiv.org/abs/1706.03762, or learned embeddings, as in Devlin et al. 2018, *BERT*,
https://arxiv.org/abs/1810.04805. Learned positions are drawn and scaled as tokens are, so that the
two start equally large, as in BERT.
"""

import math

import torch
from torch import Tensor, nn

from headwise.models.adaptive import AdaptiveEmbedding
from headwise.models.config import TransformerConfig
from headwise.ops.masks import of_queries


def token_embedding(config: TransformerConfig, vocab_size: int) -> nn.Module:
    """Returns an embedding of tokens as wide as the model, adaptive if there are cutoffs."""
    cutoffs = getattr(config, "adaptive_cutoffs", None)
    if cutoffs is None:
        return nn.Embedding(vocab_size, config.embed_dim, config.pad_token_id)
    factor: int = config.adaptive_factor
    return AdaptiveEmbedding(vocab_size, config.embed_dim, cutoffs, factor, config.pad_token_id)


def position_embedding(config: TransformerConfig) -> nn.Embedding | None:
    """Returns an embedding of learned positions; None if the positions are sinusoids."""
    if config.max_positions is None:
        return None
    return nn.Embedding(config.max_positions, config.embed_dim)


def embed(
    words: Tensor,
    padding: Tensor | None = None,
    offset: int | Tensor = 0,
    learned: nn.Embedding | None = None,
    position_ids: Tensor | None = None,
) -> Tensor:
    """Returns √d times the embeddings plus sinusoids, or √d times the sum with learned positions.

    Args:
        words: embeddings of tokens, not scaled, `(batch, time, embed_dim)`.
        padding: `(batch, offset + time)`, `True` at padding. A token's position is the number of
            tokens before it, so that it does not matter on which side the padding stands.
        offset: how many positions earlier calls have seen; a tensor if their cache is of a fixed
            size, which `padding` then covers, `(batch, size)`.
        learned: the embedding of positions, if they are learned.
        position_ids: the positions, `(batch or 1, time)` or `(time,)`, if they are given.
    """
    time, width = words.shape[1:]
    if position_ids is not None:
        positions = _checked_positions(position_ids, time, learned)
    else:
        if learned is not None and not isinstance(offset, Tensor):
            _check_length(learned, offset + time, padding)
        if padding is None:
            positions = offset + torch.arange(time, device=words.device)  # (time,)
        else:
            # (batch, time); -1 before all tokens
            positions = of_queries((~padding).cumsum(1), offset, time) - 1
    scale = math.sqrt(width)
    if learned is not None:
        return (words + learned(positions.clamp(min=0))) * scale
    return words * scale + sinusoids(positions, width).to(words.dtype)


def sinusoids(positions: Tensor, embed_dim: int) -> Tensor:
    """Sinusoidal positions: sin(t / 10000^(2i/d)) in channel 2i, its cosine in channel 2i + 1.

    >>> sinusoids(torch.tensor([0, 1]), 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    channels = torch.arange(0, embed_dim, 2, device=positions.device)
    rates = torch.exp(channels * (-math.log(10_000) / embed_dim))
    angles = positions.unsqueeze(-1) * rates  # (time, ceil(embed_dim / 2))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :embed_dim]


def _check_length(learned: nn.Embedding, length: int, padding: Tensor | None = None) -> None:
    limit = learned.num_embeddings
    if length > limit and padding is not None:
        # Padding takes no position. Counting has the host wait for the device, so it comes last.
        length = int((~padding).sum(1).max())
    if length > limit:
        raise ValueError(
            f"a sequence has {length} tokens, expected at most {limit}: the model has that many "
            f"learned positions (max_positions); shorten the input or the generated text, or "
            f"train a model with more positions or with sinusoidal ones"
        )


def _checked_positions(position_ids: Tensor, time: int, learned: nn.Embedding | None) -> Tensor:
    if position_ids.dim() not in (1, 2) or position_ids.size(-1) != time:
        raise ValueError(
            f"position_ids has shape {tuple(position_ids.shape)}, expected (batch, time) or (time,)"
            f", where time is {time}: a position for each token of this call"
        )
    if learned is not None and not torch.compiler.is_compiling():
        _check_length(learned, int(position_ids.max()) + 1)
    return position_ids
