"""What reports call the decisions of gated attention."""

from headwise.heads.words import Words

WORDS = Words(
    unit="head",
    units="heads",
    decision="gates",
    measure="weight",
    entropy="says how evenly the gates of a position are open. They are no distribution, so each "
    "is divided by the sum over the heads first: on the dashed line all are open equally wide, "
    "near 0 a single head is let through. How wide they are open in all, it does not say.",
    share="is the mean of a head's gate, divided by the sum over the heads: how far it is open in "
    "comparison with the others, not by itself.",
)
