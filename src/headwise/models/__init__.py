"""The models, and what finds, records and changes the systems in them.

Importing this lets transformers' Auto classes know all models.
"""

from headwise.models import for_tasks, inspect, speech

__all__ = ["for_tasks", "inspect", "speech"]
