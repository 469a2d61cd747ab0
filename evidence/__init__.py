"""The papers' claims, put to the test: what each says, the runs that test it, and the verdict.

From the ground up: `claims`, `experiments` and `questions` read what `catalogue/` declares;
`results` is what is kept of runs, as it was recorded;
`quantities`, `verdicts` and `answers` come to the verdicts on claims and the answers to questions;
`tuning` and `training` have missing runs trained and times measured; `page` and `pictures` write
docs/claims.md. The command is `python -m evidence`.
"""
