"""What is asked of decisions: a file for each question, whose section of the page has its name."""
