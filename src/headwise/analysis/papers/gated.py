"""The figures of gated attention."""

import torch

from headwise.analysis.papers.figures import Figure, Paper
from headwise.analysis.papers.models import matrices
from headwise.heads.system import Place
from headwise.models.plan import build_system


def gated_figures() -> Paper:
    """Returns the figures of table 1, by the sizes of table 7."""
    return Paper(
        "Qiu et al. 2025, Gated Attention, tables 1 and 7",
        "What a gate behind each head adds to the mixture of experts of 15B parameters: 24 layers "
        "of d=2048 with 32 heads of 128.",
        tuple(
            Figure(f"{gate} gates, 24 layers", "params", printed, 24 * _gates(gate, 2048, 32, 128))
            for gate, printed in (("elementwise", "+201M"), ("headwise", "+1.6M"))
        ),
    )


def _gates(gate: str, embed_dim: int, num_heads: int, head_dim: int) -> int:
    """The number of parameters of the gates of one layer."""
    place = Place("decoder_self", embed_dim, num_heads, ffn_dim=4 * embed_dim)
    with torch.device("meta"):
        gated = build_system({"system": "gated", "gate": gate, "head_dim": head_dim}, place)
        standard = build_system({"system": "standard", "head_dim": head_dim}, place)
    return matrices(gated) - matrices(standard)
