"""The figures that the papers print on the cost of their models, with ours.

The numbers of parameters and of multiply-accumulates follow from the equations of a system and the
sizes of a model alone. If ours agree with the published ones, we read the equations as their
authors do. The totals depend on the size of the vocabulary, which papers rarely give. Each figure
names the size that we assume. `published.yaml` is the table, `published` counts ours.
"""
