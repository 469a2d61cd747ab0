"""Runs `headwise`, also as `python -m headwise`, so that `torchrun -m headwise train ...` works."""

import os
import sys

from headwise.installation import what_is_wrong
from headwise.threads import sleep_while_waiting


def main() -> None:
    """Runs the command of `sys.argv`, unless what it needs is not installed, which it says."""
    wrong = what_is_wrong("train")
    if wrong is not None:
        sys.exit(f"error: the commands need {wrong}")
    if os.environ.get("COLUMNS") == "0":  # of a terminal that does not know its width
        del os.environ["COLUMNS"]
    sleep_while_waiting()
    from headwise.cli import app

    app(prog_name="headwise")


if __name__ == "__main__":
    main()
