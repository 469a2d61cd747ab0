"""Sentence pairs: parallel corpora."""
