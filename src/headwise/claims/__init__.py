"""The papers' claims, put to the test: what each says, the runs that test it, and the verdict.

- `papers/`: the claims of each paper, and `declared`: what such a file may say.
- `scales.yaml`, `recipes/`: the runs that there are at each scale, which `experiments` reads.
- `needed`: the runs that claims need; `running` trains what is missing of them.
- `evidence`: what is kept of a run, small enough to be committed.
- `fingerprint`: tells whether the code still computes what it did when a run was made.
- `quantities`: the number that a claim is about, and `verdicts`: what the numbers say of it.
- `planning`: how long the runs take; `page`: writes docs/claims.md.

The statistics are those of comparisons: `headwise.analysis.chance`.
"""
