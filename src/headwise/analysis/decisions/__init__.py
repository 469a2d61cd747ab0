"""What the heads of a trained model do: the questions that the papers ask of theirs.

`observing` makes rows of the decisions of a batch, a file asks each question, and `record` asks all
of them. A question is a class with `add(observed)`, called once for each batch, and `result()`. It
keeps running sums (`sums`), never the batches. `snapshots` follow decisions over the training.

To ask another question: write its class into a file here, its section and template into files of
the same name in `report/analysis_page`, and name it in `record.QUESTIONS`, in `record.RunAnalysis`
and in `analysis_page.page.SECTIONS`.
"""
