"""The verdict on a claim: `judging` tests its quantity, `verdicts` says what follows.

The statistics are those of comparisons: `headwise.analysis.statistics`.
"""
