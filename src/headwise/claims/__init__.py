"""The papers' claims, put to the test: what each says, the runs that test it, and the verdict.

From the ground up: `catalogue` has the claims, the experiments and the questions why; `evidence`
what is kept of runs; `judging` comes to the verdicts and `why` to the answers; `runs` trains what
is missing; `page` writes docs/claims.md.
"""
