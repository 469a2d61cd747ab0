"""Tokens and their positions as vectors: what a stack of layers reads.

Positions are rotary, see `headwise.ops.rotary`; or sinusoids, as in Vaswani et al. 2017, *Attention
Is All You Need*, https://arxiv.org/abs/1706.03762; or learned embeddings, as in Devlin et al. 2018,
*BERT*, https://arxiv.org/abs/1810.04805. Learned positions are drawn and scaled as tokens are, so
that the two start equally large, as in BERT.

Adaptive embeddings and an adaptive softmax have fewer weights for rare words:
Baevski & Auli 2019, *Adaptive Input Representations for Neural Language Modeling*,
https://arxiv.org/abs/1809.10853, which shares its weights with the adaptive softmax of Grave et
al. 2017, *Efficient softmax approximation for GPUs*, https://arxiv.org/abs/1609.04309.

Words are numbered by frequency, the most frequent first, and divided into bands at cutoffs. Band i
= 0, 1, … has embeddings E_i of width d / factor^i and a linear map P_i to the width d of the model:

    x_w    = P_i e_w,   w in band i                                              input
    p(w)   = softmax([E₀ h; C h])_w,                          w in band 0        output
    p(w)   = softmax([E₀ h; C h])_i · softmax(E_i P_iᵀ h)_w,  w in band i > 0

where C has a row for each band except the first. C is the only weight that the output does not
share with the input. As in the paper, the output does not use P₀: it multiplies h with E₀ directly.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.models.config import TransformerConfig
from headwise.ops.bounds import check_probability
from headwise.ops.linear_maps import linear_map
from headwise.ops.masks import of_queries
from headwise.ops.shapes import can_be_looked_at


def token_embedding(config: TransformerConfig, vocab_size: int) -> nn.Module:
    """Returns an embedding of tokens as wide as the model, adaptive if there are cutoffs."""
    padding = None if config.learned_padding else config.pad_token_id
    cutoffs = getattr(config, "adaptive_cutoffs", None)
    if cutoffs is None:
        return nn.Embedding(vocab_size, config.embed_dim, padding)
    factor: int = config.adaptive_factor
    return AdaptiveEmbedding(vocab_size, config.embed_dim, cutoffs, factor, padding)


def position_embedding(config: TransformerConfig) -> nn.Embedding | None:
    """Returns an embedding of learned positions; None if the positions are sinusoids."""
    if config.max_positions is None:
        return None
    return nn.Embedding(config.max_positions, config.embed_dim)


def token_positions(
    words: Tensor,
    padding: Tensor | None = None,
    offset: int | Tensor = 0,
    learned: nn.Embedding | None = None,
    position_ids: Tensor | None = None,
) -> Tensor:
    """Returns the positions of tokens, `(time,)` or `(batch or 1, time)`; -1 before all tokens.

    Args:
        words: embeddings of tokens, `(batch, time, embed_dim)`.
        padding: `(batch, offset + time)`, `True` at padding. A token's position is the number of
            tokens before it, so that it does not matter on which side the padding stands.
        offset: how many positions earlier calls have seen; a tensor if their cache is of a fixed
            size, which `padding` then covers, `(batch, size)`.
        learned: the embedding of positions, if they are learned.
        position_ids: the positions, `(batch or 1, time)` or `(time,)`, if they are given.
    """
    time = words.size(1)
    if position_ids is not None:
        return _checked_positions(position_ids, words.size(0), time, learned)
    looked_at = isinstance(offset, Tensor) and can_be_looked_at(offset)
    seen = int(offset) if looked_at else offset
    if learned is not None and not isinstance(seen, Tensor):
        so_far = None if padding is None else padding[:, : seen + time]
        _check_length(learned, seen + time, so_far)
    if padding is None:
        return offset + torch.arange(time, device=words.device)
    return of_queries((~padding).cumsum(1), offset, time) - 1


def embed(words: Tensor, positions: Tensor, how: str, scale: float, learned: Any = None) -> Tensor:
    """Returns embeddings with their positions, `(batch, time, embed_dim)`.

    They are scale times the sum with learned positions, or scale times the embeddings plus
    sinusoids; rotary positions come later.
    """
    if learned is not None:
        return (words + learned(positions.clamp(min=0))) * scale
    words = words if scale == 1 else words * scale
    if how == "rotary":
        return words
    return words + sinusoids(positions, words.size(-1)).to(words.dtype)


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


def _checked_positions(
    position_ids: Tensor, batch: int, time: int, learned: nn.Embedding | None
) -> Tensor:
    if position_ids.shape not in ((time,), (1, time), (batch, time)):
        raise ValueError(
            f"position_ids has shape {tuple(position_ids.shape)}, expected (batch, time) or (time,)"
            f", where batch is {batch} and time is {time}: a position for each token of this call"
        )
    if learned is not None and can_be_looked_at(position_ids):
        _check_length(learned, int(position_ids.max()) + 1)
    return position_ids


class AdaptiveEmbedding(nn.Module):
    """Embeddings whose width depends on how frequent a word is.

    Args:
        vocab_size: number of words; the most frequent have the smallest ids.
        embed_dim: width of the model and of the embeddings of the first band.
        cutoffs: the first word of each band except the first.
        factor: how many times narrower each band is than the band before it.
        padding_idx: a word of the first band whose embedding is zero.

    Shape:
        ids `(...)`; output `(..., embed_dim)`.

    Raises:
        ValueError: the cutoffs, the factor or `padding_idx` do not fit the sizes.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        cutoffs: Sequence[int],
        factor: int = 4,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        bands = band_sizes(vocab_size, embed_dim, cutoffs, factor)
        if padding_idx is not None and not 0 <= padding_idx < cutoffs[0]:
            raise ValueError(
                f"padding_idx is {padding_idx}, expected a word of the first band, 0 to "
                f"{cutoffs[0] - 1}"
            )
        self.embed_dim = embed_dim
        self.edges = (0, *cutoffs, vocab_size)  # band i has the words from edge i up to edge i + 1
        self.bands = nn.ModuleList(
            nn.Embedding(words, width, padding_idx if band == 0 else None)
            for band, (words, width) in enumerate(bands)
        )
        self.projections = nn.ModuleList(
            nn.Linear(width, embed_dim, bias=False) for _, width in bands
        )

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor | int = 0
        for (first, last), band, projection in zip(
            pairwise(self.edges), self.bands, self.projections, strict=True
        ):
            # Every band is applied to every word: it is little work, and shapes depend on no data.
            here = ((ids >= first) & (ids < last)).unsqueeze(-1)
            words = projection(band((ids - first).clamp(0, last - first - 1)))
            x = x + words.masked_fill(~here, 0.0)
        assert isinstance(x, Tensor)
        return x

    @property
    def num_words(self) -> int:
        """How many words there are in all bands."""
        return self.edges[-1]

    def weights(self, band: int) -> tuple[Tensor, Tensor]:
        """Returns E and P of a band, `(words, width)` and `(embed_dim, width)`."""
        embedding, projection = self.bands[band], self.projections[band]
        if type(embedding) is nn.Embedding:
            words = embedding.weight
        else:  # an adapter stands around it
            device = next(embedding.parameters()).device
            words = embedding(torch.arange(self.edges[band + 1] - self.edges[band], device=device))
        return words, linear_map(projection, words.size(1), words).matrix


class AdaptiveSoftmax(nn.Module):
    """A softmax over bands of words that shares its weights with an `AdaptiveEmbedding`.

    The embedding is an argument of each call; it is no submodule of the softmax.

    Args:
        embed_dim: width of the model.
        num_bands: number of bands of the embedding.
        dropout: probability with which channels of the input and of the inputs of the narrower
            bands are set to zero.

    Example:
        >>> embedding = AdaptiveEmbedding(100, 16, cutoffs=[10, 40])
        >>> AdaptiveSoftmax(16, num_bands=3).log_probs(torch.randn(5, 16), embedding).shape
        torch.Size([5, 100])
    """

    def __init__(self, embed_dim: int, num_bands: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_probability("dropout", dropout)
        self.clusters = nn.Linear(embed_dim, num_bands - 1, bias=False)  # C
        self.dropout = dropout

    def losses(self, hidden: Tensor, labels: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Returns -log p of each label, `(tokens,)`, at least in float32.

        Only bands that have labels are computed. `hidden` is `(tokens, embed_dim)`, and no label
        is -100.
        """
        hidden = F.dropout(hidden, self.dropout, self.training)
        first_band, *narrower = pairwise(embedding.edges)
        in_head = labels.clone()
        for band, (first, last) in enumerate(narrower):
            in_head[(labels >= first) & (labels < last)] = first_band[1] + band
        losses = F.cross_entropy(
            _precise(self._head(hidden, embedding)), in_head, reduction="none"
        )  # (tokens,)
        for band, (first, last) in enumerate(narrower, start=1):
            here = ((labels >= first) & (labels < last)).nonzero().squeeze(-1)
            logits = _precise(self._tail(hidden[here], embedding, band))  # (of band, words)
            of_band = F.cross_entropy(logits, labels[here] - first, reduction="none")
            losses = losses.index_add(0, here, of_band)
        return losses

    def log_probs(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Returns log p of all words, `(..., vocab_size)`, given `(..., embed_dim)`."""
        hidden = F.dropout(hidden, self.dropout, self.training)
        size = embedding.edges[1]
        head = _precise(self._head(hidden, embedding)).log_softmax(-1)
        parts = [head[..., :size]]
        for band in range(1, len(embedding.bands)):
            tail = _precise(self._tail(hidden, embedding, band)).log_softmax(-1)
            parts.append(head[..., size + band - 1].unsqueeze(-1) + tail)
        return torch.cat(parts, dim=-1)

    def _head(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Returns the logits of the words of the first band, then those of the other bands."""
        words, _ = embedding.weights(0)
        return torch.cat([F.linear(hidden, words), self.clusters(hidden)], dim=-1)

    def _tail(self, hidden: Tensor, embedding: AdaptiveEmbedding, band: int) -> Tensor:
        """Returns the logits of the words of another band."""
        words, projection = embedding.weights(band)
        narrow = F.linear(hidden, projection.T)  # (..., width of band)
        return F.linear(F.dropout(narrow, self.dropout, self.training), words)


def band_sizes(
    vocab_size: int, embed_dim: int, cutoffs: Sequence[int], factor: int
) -> list[tuple[int, int]]:
    """How many words each band of an `AdaptiveEmbedding` has, and the width of their embeddings.

    >>> band_sizes(100, 16, cutoffs=[10, 40], factor=4)
    [(10, 16), (30, 4), (60, 1)]
    """
    edges = (0, *cutoffs, vocab_size)
    if not cutoffs or any(first >= last for first, last in pairwise(edges)):
        raise ValueError(
            f"adaptive_cutoffs is {list(cutoffs)}, expected ascending numbers of words between 0 "
            f"and vocab_size = {vocab_size}, such as [{vocab_size // 10 or 1}]"
        )
    if factor < 1 or embed_dim % factor ** len(cutoffs):
        raise ValueError(
            f"adaptive_factor is {factor}, expected a number that divides embed_dim = {embed_dim} "
            f"{len(cutoffs)} times, once for each of adaptive_cutoffs"
        )
    return [
        (last - first, embed_dim // factor**band)
        for band, (first, last) in enumerate(pairwise(edges))
    ]


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
