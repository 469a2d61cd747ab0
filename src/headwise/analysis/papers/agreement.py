"""The figures of routing by agreement."""

from typing import Any

from headwise.analysis.papers.figures import Figure, Paper
from headwise.analysis.papers.models import encoder_decoder


def agreement_figures() -> Paper:
    """Returns the figures of tables 2 to 4."""

    def added(plan: Any, **sizes: int) -> int:
        routed, standard = (encoder_decoder(p, **sizes) for p in (plan, "standard"))
        return routed.parameters(0) - standard.parameters(0)

    def in_encoder(*layers: int, routing: str = "em") -> dict[str, Any]:
        numbers = [layer - 1 for layer in layers]  # the paper counts from 1
        return {"encoder_self": {"system": "agreement", "routing": routing, "layers": numbers}}

    em: dict[str, Any] = {"system": "agreement"}
    everywhere = (1, 2, 3, 4, 5, 6)
    big = {"embed_dim": 1024, "num_heads": 16, "ffn_dim": 4096}
    unknown = "embeddings not stated; without them ours is {:.1f}M"
    base = encoder_decoder("standard").parameters(0)
    large = encoder_decoder("standard", **big).parameters(0)
    figures = [
        Figure("base, standard", "params", "88.0M", None, remark=unknown.format(base / 1e6)),
        Figure("big, standard", "params", "264M", None, remark=unknown.format(large / 1e6)),
    ]
    for name, printed, plan in (
        ("encoder self, simple", "+12.6M", in_encoder(*everywhere, routing="simple")),
        ("encoder self", "+12.6M", in_encoder(*everywhere)),
        ("encoder-decoder", "+12.6M", {"decoder_cross": em}),
        ("decoder self", "+12.6M", {"decoder_self": em}),
        ("encoder self and encoder-decoder", "+25.2M", {"encoder_self": em, "decoder_cross": em}),
        ("all three", "+37.8M", em),
    ):
        figures.append(Figure(name, "params", printed, added(plan)))
    for name, printed, standard, layers, sizes in (
        ("encoder layers 1–6", "100.6M", 88.0e6, everywhere, {}),
        ("encoder layers 4–6", "94.3M", 88.0e6, (4, 5, 6), {}),
        ("encoder layers 1–3", "94.3M", 88.0e6, (1, 2, 3), {}),
        ("encoder layers 1–2", "92.2M", 88.0e6, (1, 2), {}),
        ("encoder layer 6", "90.1M", 88.0e6, (6,), {}),
        ("encoder layer 1", "90.1M", 88.0e6, (1,), {}),
        ("En–De base, layers 1–2", "92M", 88e6, (1, 2), {}),
        ("En–De big, layers 1–2", "297M", 264e6, (1, 2), big),
        ("Zh–En base, layers 1–2", "112M", 108e6, (1, 2), {}),
        ("Zh–En big, layers 1–2", "337M", 304e6, (1, 2), big),
    ):
        ours = standard + added(in_encoder(*layers), **sizes)
        figures.append(Figure(name, "params", printed, ours))
    return Paper(
        "Li et al. 2019, Routing-by-Agreement, tables 2 to 4",
        "What counts is the difference from the standard model, which no vocabulary changes: "
        "totals are the standard model's in print and what ours adds to it, with the capsules' "
        "biases and EM's two scalars.",
        tuple(figures),
    )
