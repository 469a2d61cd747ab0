"""The commands of `headwise`. Each is thin: the library does the work."""

from headwise.cli import finished, train  # registers the commands that `headwise --help` lists
from headwise.cli.app import app

__all__ = ["app", "finished", "train"]
