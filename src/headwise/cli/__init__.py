"""The commands of `headwise`. Each is thin: the library does the work."""

from headwise.cli import about, finished, train  # what `headwise --help` lists
from headwise.cli.app import app

__all__ = ["about", "app", "finished", "train"]
