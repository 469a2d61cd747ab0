"""The Weighted Transformer's figures."""

from headwise.analysis.papers.figures import Figure, Paper
from headwise.analysis.papers.models import encoder_decoder


def weighted_figures() -> Paper:
    """Returns the figures of table 2."""
    figures = []
    for layers, printed in ((2, "36M"), (4, "50M"), (6, "65M"), (8, "80M")):
        figures += _weighted_rows(printed, 41_000, encoder_layers=layers, decoder_layers=layers)
    big = {"embed_dim": 1024, "num_heads": 16, "ffn_dim": 4096}
    figures += _weighted_rows("213M", 37_000, **big)
    figures += [
        Figure(
            "κ and α, N=6, 8 branches",
            "params",
            "+192",
            encoder_decoder("weighted").routing,
            exact=True,
        ),
        Figure(
            "κ and α of 213M, both stacks",
            "params",
            "+192",
            encoder_decoder("weighted", **big).routing,
            remark="which the paper gives 16 branches in its table 2, and here the number of 8",
            exact=True,
        ),
        Figure(
            "κ and α of 213M, the encoder alone",
            "params",
            "+192",
            encoder_decoder({"encoder_self": "weighted"}, **big).routing,
            exact=True,
        ),
    ]
    return Paper(
        "Ahmed et al. 2017, Weighted Transformer Network, table 2",
        "The baselines' figures are those of Vaswani et al., who give 37,000 words; their models "
        "of d=512 fit 41,000. Ours adds κ and α, as the paper says, but is smaller by the "
        "output bias that a sub-layer with its feed-forward inside does without.",
        tuple(figures),
    )


def _weighted_rows(printed: str, words: int, **sizes: int) -> list[Figure]:
    name = f"N={sizes.get('encoder_layers', 6)}, d={sizes.get('embed_dim', 512)}"
    return [
        Figure(
            f"{who}, {name}",
            "params",
            printed,
            encoder_decoder(system, **sizes).parameters(words),
            f"{words:,}",
        )
        for who, system in (("Transformer", "standard"), ("Weighted", "weighted"))
    ]
