"""Mixture of attention heads (MoA): each token selects its own k of E heads.

Zhang et al. 2022, *Mixture of Attention Heads: Selecting Attention Heads Per Token*,
https://arxiv.org/abs/2210.05144. Read `layer` first; `experts` has its numerics, and
`declared` what it declares: presets, words of reports, ablations.
"""

from headwise.heads.moa.layer import MixtureOfAttentionHeads

__all__ = ["MixtureOfAttentionHeads", "MoA"]

# The name that papers and tables use.
MoA = MixtureOfAttentionHeads
