"""The Weighted Transformer: branches of attention with learned weights on the simplex.

Ahmed et al. 2017, *Weighted Transformer Network for Machine Translation*,
https://arxiv.org/abs/1711.02132. Read `layer` first; `feed_forward` has its
numerics, `rule` trains it, `declared` has bounds, words of reports and ablations.
"""

from headwise.heads.weighted.layer import BranchedAttention

__all__ = ["BranchedAttention"]
