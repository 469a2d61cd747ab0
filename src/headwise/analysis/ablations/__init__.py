"""What it costs a model to do without parts of its systems."""
