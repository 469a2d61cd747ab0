"""Runs `headwise` as `python -m headwise`, so that `torchrun -m headwise train ...` works."""

from headwise.cli import app

if __name__ == "__main__":
    app(prog_name="headwise")
