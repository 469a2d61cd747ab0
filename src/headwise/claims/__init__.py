"""The papers' claims, put to the test: what each says, the runs that test it, and the verdict.

- `papers/`: the claims of each paper, and `declared`: what such a file may say.
- `scales.yaml`, `recipes/`: the runs that there are at each scale, which `experiments` reads.
- `needed`: the runs that claims need; `running` has those trained that are missing, `choosing` lets
  systems choose tuned values, `keeping` trains a run and keeps what claims need of it.
- `evidence`: the records that are kept, small enough to be committed; `claim_evidence` reads the
  records for one claim.
- `fingerprint`: tells whether the code still computes what it did when a run was made.
- `quantities`: the number that a claim is about; `judging` tests it, `verdicts` says what follows.
- `planning`: how long the runs take.
- `page`: writes docs/claims.md from `*.md.jinja`; `experiment_results` and `experiment_table` have
  what it says of an experiment, `convergence` whether a baseline had stopped learning, `totals`
  what it says of all claims, `pictures/` its SVG files.

The statistics are those of comparisons: `headwise.analysis.chance`.
"""
