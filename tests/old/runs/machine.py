"""Does a command of headwise as one of two machines does, each of which has a folder of its own.

The second machine dies at a moment: when it gives the file or folder its name that the environment
variable `DIES_AT` names.
"""

import os
import signal
import sys

from headwise.cli import app
from headwise.runs import locking


def die(event: str, arguments: tuple) -> None:
    if event == "os.rename" and str(arguments[1]).endswith(os.environ["DIES_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    locking._SECONDS_TO_SEE = 0.0  # what two machines share on this one, both see at once
    if "DIES_AT" in os.environ and os.environ["RANK"] == "1":
        sys.addaudithook(die)
    app()
