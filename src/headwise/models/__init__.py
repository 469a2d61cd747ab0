"""Transformer stacks and their Hugging Face classes."""
