"""Numerics without parameters, which more than one system or model uses."""

IGNORED_LABEL = -100  # at positions without a label, as in PyTorch's losses; regression has it too
