"""What a model of each task is given to read, and what the page is told that it made of it."""
