"""What reports call the decisions of differential attention."""

from headwise.heads.words import Words

WORDS = Words(
    unit="head",
    units="heads",
    decision="subtracted shares",
    measure="weight",
    entropy="says how evenly the heads of a position subtract. Shares are no distribution, so each "
    "is divided by the sum over the heads first: on the dashed line all heads subtract the same "
    "share. How much they subtract in all, it does not say.",
    share="is the mean share of its second map that a head subtracts, divided by the sum over the "
    "heads: how much it subtracts in comparison with the others, not by itself.",
)
