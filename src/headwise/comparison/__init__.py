"""`headwise compare`: plan the runs, train them, put their figures side by side."""

from headwise.comparison.comparing import compare_systems
from headwise.comparison.planned import RunsFailed

__all__ = ["RunsFailed", "compare_systems"]
