"""Runs: one, many, and finished ones. A run is an idempotent command over its folder."""
