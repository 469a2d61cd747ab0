"""Gated attention: a sigmoid of the query's input scales what each head has read.

Qiu et al. 2025, *Gated Attention for Large Language Models: Non-linearity, Sparsity, and
Attention-Sink-Free*, https://arxiv.org/abs/2505.06708. Read `layer` first.
"""

from headwise.heads.gated.layer import GatedAttention

__all__ = ["GatedAttention"]
