"""The models, and what finds, records and changes the systems in them.

All models are imported with the first of them, so that transformers' Auto classes know all or none.
"""

from headwise.installation import check_installation

check_installation()  # before the first import of transformers

from headwise.models import (  # noqa: E402
    causal_lm,
    classifier,
    masked_lm,
    seq2seq,
    speech,
)

__all__ = ["causal_lm", "classifier", "masked_lm", "seq2seq", "speech"]
