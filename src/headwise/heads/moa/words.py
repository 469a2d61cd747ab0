"""What a report calls the decisions of MoA's router."""

from headwise.heads.words import Words

WORDS = Words(
    unit="expert",
    units="experts",
    decision="choices",
    measure="choice",
    entropy="says how evenly a position weighs the experts it has chosen: on the dashed line all "
    "count alike, near 0 a single one decides.",
    share="says how many of the choices fall on each expert of a layer: an even row means that "
    "all are in use, a blank cell is an expert that nobody chooses.",
)
