"""What the image task is made of: sources, palette, drawings, maps."""
