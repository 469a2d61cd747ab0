"""What the site of documentation adds to Sphinx."""
