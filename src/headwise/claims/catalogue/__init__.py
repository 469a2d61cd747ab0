"""What is put to the test: all that is declared, before anything is run.

- `papers/`: the claims of each paper, and `declared`: what such a file may say.
- `scales.yaml`, `recipes/`: the experiments of each scale, which `experiments` reads.
- `needed`: the runs that claims need of them.
- `questions.yaml`: the questions why, which `headwise.claims.why.questions` reads.
"""
