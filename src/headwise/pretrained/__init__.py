"""Systems over the heads of pretrained models of transformers."""
