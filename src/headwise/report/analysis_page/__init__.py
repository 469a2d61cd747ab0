"""The page of an analysis: a file for each of its sections, which are all made alike."""
