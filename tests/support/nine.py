"""The nine systems at one small size, to which a test adds what it is about."""

from typing import Any

import torch
from torch import Tensor, nn

import headwise as hw

DIM, HEADS = 12, 4
# The class of each, its sizes, and what keeps its passes free of random numbers.
NINE: dict[str, tuple[Any, dict[str, Any]]] = {
    "standard": (hw.MultiHeadAttention, {"num_heads": HEADS}),
    "mae": (
        hw.MixtureOfAttentiveExperts,
        {"num_heads": HEADS, "gate_hidden_dim": 8, "gate_dropout": 0.0},
    ),
    "moa": (hw.MixtureOfAttentionHeads, {"num_experts": 5, "top_k": 2, "head_dim": 3}),
    "moh": (hw.MixtureOfHeads, {"num_heads": HEADS, "shared_heads": 1, "top_k": 2}),
    "gated": (hw.GatedAttention, {"num_heads": HEADS}),
    "differential": (hw.DifferentialAttention, {"num_heads": HEADS}),
    "agreement": (hw.AgreementAttention, {"num_heads": HEADS}),
    "weighted": (hw.BranchedAttention, {"num_branches": HEADS, "ffn_dim": 16}),
    "tim": (
        hw.IndependentMechanismsLayer,
        {"num_heads": HEADS, "ffn_dim": 16, "num_mechanisms": 2, "exchange_head_dim": 4},
    ),
}
# Those that stand in the place of an attention and of nothing more.
ATTENTIONS = [name for name, (kind, _) in NINE.items() if kind.replaces == "attention"]


def build(
    name: str,
    dim: int = DIM,
    *,
    dtype: torch.dtype = torch.float64,
    train: bool = False,
    drawn: bool = True,
    **options: Any,
) -> Any:
    """A system, all of whose parameters count unless it is to start as it does (`drawn=False`)."""
    kind, sizes = NINE[name]
    module = kind(dim, **{**sizes, **options}).to(dtype).train(train)
    return strengthened(module) if drawn else module


@torch.no_grad()
def strengthened(module: nn.Module, scale: float = 0.5) -> Any:
    """Draws all parameters and statistics anew: what starts at zero or one would hide mistakes."""
    for name, parameter in module.named_parameters():
        parameter.normal_(std=scale)
        if name.rpartition(".")[2] in ("kappa", "alpha"):  # a point of the simplex
            parameter.copy_(parameter.softmax(0))
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)
    return module


def inputs(batch: int = 3, time: int = 5, dim: int = DIM, **options: Any) -> Tensor:
    return torch.randn(batch, time, dim, **{"dtype": torch.float64, **options})


def padding(*lengths: int, time: int, left: bool = False) -> Tensor:
    """Boolean `(batch, time)`, True at padding."""
    rows = torch.arange(time) >= torch.tensor(lengths).unsqueeze(1)
    return rows.flip(1) if left else rows
