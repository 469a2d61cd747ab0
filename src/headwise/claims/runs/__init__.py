"""Trains the runs that claims and questions need, and are missing.

- `running`: all of an experiment or of a question, one after another; `choosing` lets systems
  choose tuned values before, `keeping` trains a run and keeps what claims need of it.
- `timing`: measures the times that claims are about, which takes no training.
- `planning`: how long the runs take.
"""
