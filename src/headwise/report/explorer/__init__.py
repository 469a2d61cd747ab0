"""A page on which a model's heads are seen at work on one input, written or served."""
