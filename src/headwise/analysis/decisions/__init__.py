"""What the heads of a trained model do: the questions that the papers ask of theirs.

`observing` makes rows of the decisions of a batch, `questions/` has a file for each question, and
`one_pass` asks all of them. A question is a class with `add(observed)`, called once for each batch,
and `result()`. It keeps running sums (`sums/`), never the batches. `ablations/` evaluates the model
otherwise than it was trained; `snapshots` and `courses` follow decisions over the training.

To ask another question: write its class into a file of `questions/`, its section and template into
files of the same name in `page/`, and name it in `one_pass.QUESTIONS`, in `results.RunAnalysis` and
in `page.page.SECTIONS`.
"""
