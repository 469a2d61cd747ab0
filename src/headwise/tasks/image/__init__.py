"""Images for the image task: data, palette, drawn samples, maps."""
