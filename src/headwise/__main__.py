"""`python -m headwise`, which `torchrun -m headwise` needs."""

from headwise.cli import app

if __name__ == "__main__":
    app(prog_name="headwise")
