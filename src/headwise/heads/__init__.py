"""Systems of heads, one file each; all change steps of the attention in `attention.py`."""
