"""Threads of a command sleep while they wait, unless its user has said how they wait."""

import os
import subprocess
import sys

import pytest

from headwise.threads import VARIABLES, sleep_while_waiting


@pytest.fixture
def nothing_chosen(monkeypatch):
    """The environment, with nothing said of how threads wait."""
    for name in VARIABLES:
        # Set first, so that what a test sets is taken back also where nothing was there.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def chosen():
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_has_chosen_stays(nothing_chosen, name):
    nothing_chosen.setenv(name, "ACTIVE")
    sleep_while_waiting()
    assert chosen() == {name: "ACTIVE"}


# Runs a command up to where torch would be loaded, and prints what torch would read then.
COMMAND = """
import os, sys
import headwise
print("imported", os.environ.get("OMP_WAIT_POLICY"))

class Loaded:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("torch", os.environ.get("OMP_WAIT_POLICY"))
            sys.stdout.flush()
            os._exit(0)

sys.meta_path.insert(0, Loaded())
sys.argv = ["headwise", "cost", "lm-pydoc"]
from headwise.__main__ import main
main()
"""


def test_it_is_said_before_torch_is_loaded_and_not_by_an_import(nothing_chosen):
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["imported None", "torch PASSIVE"], done.stderr
