"""Running text: documents of one language, for language models.

A text is a list of documents, and a document a list of lines. This package reads texts, divides
them into a training, a validation and a test part, cuts or packs them into blocks of tokens, hides
tokens in these, and continues a text with a model.
"""
