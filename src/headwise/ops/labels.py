"""The label of positions where nothing is to be predicted."""

IGNORED_LABEL = -100  # as in PyTorch's losses; labels that are real numbers use it too
