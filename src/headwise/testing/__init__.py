"""Checks that every system of heads has to pass, yours too.

    from headwise.testing import check_system

    def test_my_system():
        check_system(MySystem)

Whatever a paper's equations say, a system stands in models that train on padded batches, predict
the next token, and decode step by step with beam search. What that asks of a system is the same
for all of them: the laws of `headwise.testing.laws`, which hold for models as well. That its
equations are the paper's is for its own tests to show.
"""

from headwise.testing import laws
from headwise.testing.laws import Batch, Seen, Subject
from headwise.testing.systems import CHECKS, SITES, SystemSubject, check_system

__all__ = ["CHECKS", "SITES", "Batch", "Seen", "Subject", "SystemSubject", "check_system", "laws"]
