"""Runs `headwise`, also as `python -m headwise`, so that `torchrun -m headwise train ...` works."""

import io
import os
import sys


def main() -> None:
    """Runs the command of `sys.argv`."""
    # A character that the terminal cannot encode must not end a command after all its work.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Threads sleep while they wait for each other, and leave the processor to other programs. The
    # libraries of PyTorch read it when they are loaded; what the user has set stays as it is.
    if not {"GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"} & os.environ.keys():
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from headwise.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headwise"):
            raise
        sys.exit(f"error: the commands need {error.name}: pip install 'headwise[train]'")
    app(prog_name="headwise")


if __name__ == "__main__":
    main()
