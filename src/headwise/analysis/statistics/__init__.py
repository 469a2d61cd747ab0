"""What may be chance: intervals and tests over seeds and test items together.

Systems are scored on the same items, and seeds are independent draws of training. The score of a
system is its mean over seeds; its variance has a part of the items and a part of the seeds:

    V = V_items + Σ_systems max(0, s² − e) / S

- V_items is the variance of the mean over seeds, or of the difference of two such means, over
  resamples of the items. Systems and seeds share the items of a resample.
- s² is the variance of a system's scores over its S seeds. It also holds what the finite number
  of items adds to the differences between seeds. The bootstrap says how much that is, e, and
  V_items has it already.

Resampling three seeds would underestimate their variance by a third. So seeds are not resampled:
s² has S − 1 degrees of freedom, and quantiles of Student's t take them into account.
docs/statistics.md has the derivation, the literature and a simulation of how often the test errs.
"""
