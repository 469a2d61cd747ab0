"""What a report calls the competition of mechanisms."""

from headwise.heads.words import Words

WORDS = Words(
    unit="mechanism",
    units="mechanisms",
    decision="competition",
    measure="lead",
    entropy="says how undecided the competition of the mechanisms is: on the dashed line all "
    "count alike, near 0 one of them has the position for itself. The thin line is the lowest "
    "tenth of positions: there a layer is most certain.",
    share="says how many positions each mechanism wins.",
    shows_lowest=True,
)
