"""Routing by agreement: heads vote for the parts of the output, and agreement decides.

Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*,
https://arxiv.org/abs/1904.03100. Read `layer` first, then `simple` and `em`, in their plain and
fast forms, which `routing` applies; `declared` has presets, words of reports and ablations.
"""

from headwise.heads.agreement.layer import AgreementAttention

__all__ = ["AgreementAttention"]
