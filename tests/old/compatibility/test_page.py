"""The page says what the tests have."""

import page
import pytest
from compatible import PLANS, compatible

from headwise.models.plan import SYSTEMS


def test_the_page_is_as_the_tests_have_it():
    written = page.PAGE.read_text(encoding="utf-8")
    assert written == page.page(), "run `python tests/compatibility/page.py --write`"


def test_every_system_is_tried():
    assert set(PLANS) == set(SYSTEMS)


def test_a_refusal_has_to_be_an_error():
    @compatible("a tool", "a feature", refused={"mae": "mae cannot"})
    def works(system):
        pass

    works("standard")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        works("mae")
