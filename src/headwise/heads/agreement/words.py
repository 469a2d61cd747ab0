"""What reports call the decisions of routing by agreement."""

from headwise.heads.words import Words

WORDS = Words(
    unit="head",
    units="heads",
    decision="agreement",
    measure="weight",
    entropy="says how evenly the heads share in what the routing agrees on for a position: on the "
    "dashed line all have the same share, near 0 a single head is listened to.",
    share="is the mean share of each head.",
    part="capsule",
)
