"""Gated attention, Qiu et al. 2025, https://arxiv.org/abs/2505.06708. Read `layer` first."""

from headwise.heads.gated.layer import GatedAttention

__all__ = ["GatedAttention"]
