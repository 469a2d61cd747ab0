"""Checks that every system of heads has to pass, yours too.

    from headwise.testing import check_system

    def test_my_system():
        check_system(MySystem)

Models train systems on padded batches, predict the next token and decode with beam search. So all
systems and models obey the same laws, those of `headwise.testing.laws`. The equations of a system
need tests of their own.
"""

from headwise.testing import laws
from headwise.testing.checks import CHECKS, SITES, SystemSubject, check_system
from headwise.testing.laws import Batch, Result, Subject

__all__ = ["CHECKS", "SITES", "Batch", "Result", "Subject", "SystemSubject", "check_system", "laws"]
