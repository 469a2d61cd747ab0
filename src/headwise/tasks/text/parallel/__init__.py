"""Parallel text: sentences with their translations, for translation.

A pair is a sentence in the source language and its translation, each one line of text. This package
reads pairs, divides them into a training, a validation and a test part, encodes them, searches for
translations with a model, and scores these.
"""
