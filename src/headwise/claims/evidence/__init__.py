"""What is kept of runs, small enough to be committed, and what is read from it.

- `records`: the files, of a run, of tries and of times.
- `conditions`: the recipe and the folders of an experiment, or of what a question changes of it.
- `tries`: those that decided a system's tuned values.
- `fingerprint`: tells whether the code still computes what it did when a run was made.
- `kept_runs`: the runs of a system that count; `quantities`: the number that a claim is about;
  `of_claim`: the records of one claim.
"""
