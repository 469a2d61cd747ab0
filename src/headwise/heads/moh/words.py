"""What a report calls the decisions of MoH's routers."""

from headwise.heads.words import Words

WORDS = Words(
    unit="head",
    units="heads",
    decision="choices",
    measure="choice",
    entropy="says how evenly a position weighs the heads in force, those that are shared and "
    "those that it has selected. Gates are no distribution, so each is divided by their sum "
    "first: on the dashed line all count alike, near 0 a single one decides.",
    share="says how many of the choices fall on each head of a layer. Shared heads, which are "
    "the first, have the largest share there can be, since every position has them; even "
    "shares of the others mean that all are in use, a blank cell is a head that nobody "
    "selects.",
)
