"""Speech: recordings, and the noise that is mixed in."""
