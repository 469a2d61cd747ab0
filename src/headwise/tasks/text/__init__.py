"""Data of the tasks on text: parallel, running and labelled text, each in a package of its own.

What they share is here: tokenizers, encoded sequences, and the base class of their tasks.
"""
