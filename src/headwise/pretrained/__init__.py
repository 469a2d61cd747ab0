"""Pretrained models of transformers: systems over their heads, and models of ours from them."""
