"""One file per system; `attention.py` is the base that all of them change."""
