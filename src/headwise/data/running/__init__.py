"""Running text: documents, cut into blocks."""
