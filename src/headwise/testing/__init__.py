"""Checks that every system of heads has to pass, yours too.

    from headwise.testing import check_system

    def test_my_system():
        check_system(MySystem)

Systems stand in models that train on padded batches, predict the next token, and decode with beam
search. That asks the same of all of them: the laws of `headwise.testing.laws`, which hold for
models as well. That a system's equations are the paper's is for its own tests to show.
"""

from headwise.testing import laws
from headwise.testing.laws import Batch, Seen, Subject
from headwise.testing.systems import CHECKS, SITES, SystemSubject, check_system

__all__ = ["CHECKS", "SITES", "Batch", "Seen", "Subject", "SystemSubject", "check_system", "laws"]
