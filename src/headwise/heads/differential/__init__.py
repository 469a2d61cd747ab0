"""Differential attention: each head subtracts a share of what a second query reads.

Ye et al. 2024, *Differential Transformer*, https://arxiv.org/abs/2410.05258, in the second version
of 2026 of its authors' code, https://github.com/microsoft/unilm. Read `layer` first.
"""

from headwise.heads.differential.layer import DifferentialAttention

__all__ = ["DifferentialAttention"]
