"""Mixture of attentive experts (MAE), Peng et al. 2020, https://arxiv.org/abs/2005.06537.

Read `layer` first, then `mixture` and `gate`; `rule` trains it.
"""

from headwise.heads.mae.layer import MixtureOfAttentiveExperts

__all__ = ["MixtureOfAttentiveExperts"]
