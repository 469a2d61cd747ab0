"""`python -m headwise` is the command `headwise`; so `torchrun -m headwise train ...` works."""

from headwise.cli import app

if __name__ == "__main__":
    app(prog_name="headwise")
