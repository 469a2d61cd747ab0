"""What reports call the decisions of MAE."""

from headwise.heads.words import Words

WORDS = Words(
    unit="expert",
    units="experts",
    decision="gates",
    measure="lead",
    entropy="says how undecided the gate is: on the dashed line it gives all experts equal weight, "
    "near 0 it relies on a single one.",
    share="says how often each expert has the largest weight in its layer: an even row means that "
    "all are in use.",
)
