"""What reports call the decisions of the Weighted Transformer."""

from headwise.heads.words import Words

WORDS = Words(
    unit="branch",
    units="branches",
    decision="branches",
    measure="weight",
    entropy="says how even the weights α are: on the dashed line all branches count alike, near 0 "
    "a single one is left.",
    share="is α, a branch's weight in the sum, the same for all positions.",
    recorded={"kappa": "κ", "alpha": "α"},
    recorded_meaning="κ, by which a branch scales what it feeds into the feed-forward, and α",
)
