"""Routing by agreement, Li et al. 2019, https://arxiv.org/abs/1904.03100.

Read `layer` first, then `naive`; `simple` and `em` are the fast forms, which `routing` applies.
"""

from headwise.heads.agreement.layer import AgreementAttention

__all__ = ["AgreementAttention"]
