"""Independent mechanisms (TIM): a layer in parts that compete for positions and exchange little.

Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*,
https://arxiv.org/abs/2103.00336. Read `layer` first; `mechanisms` has the modules that it is made
of and their numerics, and `declared` presets, words of reports and ablations.
"""

from headwise.heads.tim.layer import IndependentMechanismsLayer

__all__ = ["TIM", "IndependentMechanismsLayer"]

# The name that papers and tables use.
TIM = IndependentMechanismsLayer
