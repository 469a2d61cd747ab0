"""Embeddings and a softmax with fewer weights for rare words.

Baevski & Auli 2019, *Adaptive Input Representations for Neural Language Modeling*,
https://arxiv.org/abs/1809.10853, whose input shares its weights with the adaptive softmax of Grave
et al. 2017, *Efficient softmax approximation for GPUs*, https://arxiv.org/abs/1609.04309.

Words are numbered by frequency, the most frequent first, and divided into bands at cutoffs. Band i
= 0, 1, … has embeddings E_i of width d / factor^i and a linear map P_i to the width d of the model:

    x_w    = P_i e_w,   w in band i                                              input
    p(w)   = softmax([E₀ h; C h])_w,                          w in band 0        output
    p(w)   = softmax([E₀ h; C h])_i · softmax(E_i P_iᵀ h)_w,  w in band i > 0

where C has a row for each band except the first. Of these, only C is of the output alone, and P₀
of the input alone. E₀ and C are `softmax.head`, P_i and E_i the maps of `softmax.tail[i - 1]`.
"""

from itertools import pairwise
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.models.config import CausalLMConfig
from headwise.ops import IGNORED_LABEL
from headwise.ops.layers import at_least_float32, without_autocast


class AdaptiveEmbedding(nn.Module):
    """Embeddings whose width depends on how frequent a word is, and the softmax over the same.

    Args:
        config: with `adaptive_cutoffs`, `adaptive_factor` and `adaptive_dropout`, the probability
            with which channels of the softmax's input and of its narrow bands are dropped.

    Shape:
        ids `(...)`; output `(..., embed_dim)`.

    Raises:
        ValueError: the cutoffs do not fit the vocabulary.

    Example:
        >>> sizes = {"vocab_size": 100, "embed_dim": 16, "adaptive_cutoffs": [10, 40]}
        >>> embedding = AdaptiveEmbedding(CausalLMConfig(**sizes))
        >>> embedding(torch.tensor([[3, 50]])).shape
        torch.Size([1, 2, 16])
        >>> embedding.log_probs(torch.randn(5, 16)).shape
        torch.Size([5, 100])
    """

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__()
        cutoffs, width = list(config.adaptive_cutoffs or ()), config.embed_dim
        try:
            if width < config.adaptive_factor ** len(cutoffs):
                raise ValueError("the last band has no width")
            self.softmax: Any = nn.AdaptiveLogSoftmaxWithLoss(
                width, config.vocab_size, cutoffs, div_value=config.adaptive_factor
            )
        except ValueError as error:
            raise ValueError(
                f"adaptive_cutoffs is {cutoffs}, expected ascending numbers of words between 0 and "
                f"vocab_size = {config.vocab_size}, and embed_dim = {width} at least "
                f"adaptive_factor to the power of their number"
            ) from error
        self.projection = nn.Linear(width, width, bias=False)  # P₀
        self.dropout = config.adaptive_dropout
        bands: Any = self.softmax.tail
        for band in bands:
            band.insert(1, nn.Dropout(self.dropout))
        self.edges = (-inf, *cutoffs, inf)  # band i has words from edge i to the next
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws embeddings as those of other models, with a variance of 1 over their width."""
        nn.init.normal_(self.softmax.head.weight, std=self.softmax.in_features**-0.5)
        nn.init.xavier_uniform_(self.projection.weight)
        for project, _, words in self.softmax.tail:
            nn.init.xavier_uniform_(project.weight)
            nn.init.normal_(words.weight, std=words.in_features**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        head = self.softmax.head.weight[: self.softmax.cutoffs[0]]
        bands = [(head, self.projection.weight.T)]
        bands += [(words.weight, project.weight) for project, _, words in self.softmax.tail]
        x = torch.zeros((), dtype=head.dtype, device=ids.device)
        for (first, last), (words, project) in zip(pairwise(self.edges), bands, strict=True):
            # Every band is applied to every word: it is little work, and shapes depend on no data.
            is_other = (ids < first) | (ids >= last)
            rows = (ids - max(0, first)).masked_fill(is_other, 0)
            embedded = (F.embedding(rows, words) @ project).to(x.dtype)  # under autocast too
            x = x + embedded.masked_fill(is_other.unsqueeze(-1), 0.0)
        return x

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """-log p of all labels that are not -100, summed; only bands with labels are computed."""
        predicted = labels != IGNORED_LABEL
        hidden = F.dropout(hidden[predicted], self.dropout, self.training)
        with without_autocast(hidden):  # under which the softmax would mix types
            output = self.softmax(self._as_weights(hidden), labels[predicted]).output
        return -at_least_float32(output).sum()

    def log_probs(self, hidden: Tensor) -> Tensor:
        """log p of all words, `(..., vocab_size)`, given `(..., embed_dim)`."""
        flat = F.dropout(hidden.flatten(0, -2), self.dropout, self.training)
        with without_autocast(hidden):
            return self.softmax.log_prob(self._as_weights(flat)).unflatten(0, hidden.shape[:-1])

    def _as_weights(self, hidden: Tensor) -> Tensor:
        return hidden.to(self.softmax.head.weight.dtype)
