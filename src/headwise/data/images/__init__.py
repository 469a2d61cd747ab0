"""Images: read, fitted, divided, and as sequences of colours."""
