"""`compare --tune`: gives every system the same tries, and chooses by the validation loss.

Without it all systems train with the settings that suit one of them, often the baseline. A try
trains a system with one combination of values and a seed that no run of the comparison has. The
best is chosen once for each system, and all of its seeds are trained with it. So the chance of the
choice is not in the spread over seeds: Bouthillier et al. 2021, *Accounting for Variance in Machine
Learning Benchmarks*, https://arxiv.org/abs/2103.03098, call this estimator `FixHOptEst`. Their
ideal one tunes anew for every seed.

The folders of the tries are `OUTPUT/tries/SYSTEM/training.learning_rate=0.003`, and so on.
"""
