"""Running sums from which questions are answered, whose memory does not grow with the data."""
