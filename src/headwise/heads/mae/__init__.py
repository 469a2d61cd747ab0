"""Mixture of attentive experts (MAE): gates over experts that each leave out some of the heads.

Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
https://arxiv.org/abs/2005.06537. Read `layer` first, then `gate` and `means`; `rule` trains it.
"""

from headwise.heads.mae.layer import MixtureOfAttentiveExperts

__all__ = ["MAE", "MixtureOfAttentiveExperts"]

# The name that papers and tables use.
MAE = MixtureOfAttentiveExperts
