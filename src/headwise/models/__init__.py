"""Models whose attention follows a plan, and tools for the systems in them.

Importing this package registers all models with transformers' Auto classes.
"""

from headwise.models import inspect, speech, text, tokenizers

__all__ = ["inspect", "speech", "text", "tokenizers"]
