"""Labelled texts: examples of classification and probing."""
