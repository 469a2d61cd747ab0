"""`headwise compare`: plan the runs, train them, put their figures side by side."""

from headwise.comparison.comparing import compare_systems

__all__ = ["compare_systems"]
