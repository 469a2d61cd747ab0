"""What text tasks are made of: corpora, vocabularies, batches, search, scores."""
