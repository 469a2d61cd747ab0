"""headwise: what to do with the heads of multi-head attention other than concatenating them."""

__version__ = "0.1.0"
