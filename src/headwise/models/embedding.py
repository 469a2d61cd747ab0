"""Tokens and their positions as vectors: what a stack of layers reads.

Positions are sinusoids, as in Vaswani et al. 2017, *Attention Is All You Need*,
https://arxiv.org/abs/1706.03762, or learned embeddings, as in Devlin et al. 2018, *BERT*,
https://arxiv.org/abs/1810.04805. Learned positions are drawn and scaled as tokens are, so that the
two start equally large, as in BERT.
"""

import math

import torch
from torch import Tensor, nn

from headwise.models.config import TransformerConfig
from headwise.ops.masks import of_queries, refuse_nested


def token_embedding(config: TransformerConfig, vocab_size: int) -> nn.Embedding:
    """Returns an embedding of tokens as wide as the model."""
    return nn.Embedding(vocab_size, config.embed_dim, config.pad_token_id)


def position_embedding(config: TransformerConfig) -> nn.Embedding | None:
    """Returns an embedding of learned positions; None if the positions are sinusoids."""
    if config.max_positions is None:
        return None
    return nn.Embedding(config.max_positions, config.embed_dim)


def embed(
    embedding: nn.Module,
    input_ids: Tensor,
    padding: Tensor | None = None,
    offset: int | Tensor = 0,
    learned: nn.Embedding | None = None,
) -> Tensor:
    """Returns √d times the embeddings plus sinusoids, or √d times the sum with learned positions.

    Args:
        embedding: token ids `(batch, time)` to `(batch, time, embed_dim)`.
        input_ids: tokens.
        padding: `(batch, offset + time)`, `True` at padding. A token's position is the number of
            tokens before it, so that it does not matter on which side the padding stands.
        offset: how many positions earlier calls have seen; a tensor if their cache is of a fixed
            size, which `padding` then covers, `(batch, size)`.
        learned: the embedding of positions, if they are learned.

    Raises:
        ValueError: a nested tensor, or a sequence of more tokens than there are learned positions.
    """
    refuse_nested("input_ids", input_ids)
    time = input_ids.size(1)
    if learned is not None and not isinstance(offset, Tensor):
        _check_length(learned, offset + time, padding)
    if padding is None:
        positions = offset + torch.arange(time, device=input_ids.device)  # (time,)
    else:
        # (batch, time); -1 before all tokens
        positions = of_queries((~padding).cumsum(1), offset, time) - 1
    x = embedding(input_ids)  # (batch, time, embed_dim)
    scale = math.sqrt(x.size(-1))
    if learned is not None:
        return (x + learned(positions.clamp(min=0))) * scale
    return x * scale + sinusoids(positions, x.size(-1)).to(x.dtype)


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


def _check_length(learned: nn.Embedding, length: int, padding: Tensor | None) -> None:
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
