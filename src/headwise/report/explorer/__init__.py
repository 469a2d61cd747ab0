"""A page on which a model's heads are seen at work on one input.

`payload` says what the page is given, `recording` makes it of a model and an input, `page` writes
it into a file of its own, and `server` serves it from a running model.
"""
