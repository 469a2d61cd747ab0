"""What trained models decide, what their parts are worth, and what may be chance: numbers alone."""
