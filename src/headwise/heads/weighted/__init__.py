"""The Weighted Transformer: branches of attention with learned weights on the simplex.

Ahmed et al. 2017, *Weighted Transformer Network for Machine Translation*,
https://arxiv.org/abs/1711.02132. Read `layer` first; `branches` and `simplex` are its numerics,
`naive` is the plain form of the equations, `rule` trains it, and `ablations` change it in
evaluation.
"""

from headwise.heads.weighted.layer import BranchedAttention

__all__ = ["BranchedAttention"]
