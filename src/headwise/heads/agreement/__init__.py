"""Routing by agreement: heads vote for the parts of the output, and agreement decides.

Li et al. 2019, *Information Aggregation for Multi-Head Attention with Routing-by-Agreement*,
https://arxiv.org/abs/1904.03100. Read `layer` first, then `naive`; `simple` and `em` are the fast
forms, which `routing` applies.
"""

from headwise.heads.agreement.layer import AgreementAttention

__all__ = ["AgreementAttention"]
