"""Labelled text: texts or pairs of texts with a class or a number, for classification and probing.

This package reads examples, makes some from installed packages or any text, divides them into a
training, a validation and a test part, encodes them, and scores predictions. It also starts an
encoder from a masked language model.
"""
