"""Pages: the report of a comparison, the analysis of a model, and the explorer."""
