"""Mixture of heads (MoH): some heads always count, of the others each token selects K.

Jin et al. 2025, *MoH: Multi-Head Attention as Mixture-of-Head Attention*,
https://arxiv.org/abs/2410.11842. Read `layer` first, which has its numerics too; `declared` has
what it declares: sizes, words of reports, ablations.
"""

from headwise.heads.moh.layer import MixtureOfHeads

__all__ = ["MixtureOfHeads", "MoH"]

# The name that papers and tables use.
MoH = MixtureOfHeads
