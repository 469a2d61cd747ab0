"""What the heads of a trained model do: a file for each question that the papers ask of theirs.

Each question is a class with `add(observed)`, called once for each batch, and `result()`. It keeps
sums, never the batches, so that its memory does not grow with the data.
"""
