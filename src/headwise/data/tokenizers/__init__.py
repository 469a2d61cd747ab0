"""Tokenizers: learned or ready-made."""
