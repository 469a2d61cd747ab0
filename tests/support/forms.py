"""The nine systems at one small size, and named forms of them, which are always tried.

Forms are the defaults, presets, blocks of today and edge cases: random options find rare pairs by
chance.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import headwise as hw
from headwise.ops.rotary import Rotary, rotary_rates  # a call takes it, no public name makes it
from headwise.testing import SystemSubject

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


BASE = 10.0  # of rotary positions: tokens that stand near one another are turned far apart


def turns(time: int, module: Any) -> Rotary:
    """The rotary positions of a call."""
    width = getattr(module, "self_attention", module).head_dim
    return Rotary(torch.arange(time), rotary_rates(width, BASE))


class Form(NamedTuple):
    """A system, its options, and whether its positions are rotary."""

    system: str
    options: dict[str, Any]
    rotary: bool = False

    def build(self, seed: int = 0, **more: Any) -> Any:
        """A module in float64 with random parameters and statistics."""
        torch.manual_seed(seed)
        return build(self.system, **{**self.options, **more})

    def subject(self, site: str = "encoder_self", **more: Any) -> SystemSubject:
        """It as the laws take it."""
        settled: dict[str, Any] = {}
        if self.system == "tim":
            settled["cross_attention"] = site == "decoder_self"
        first = 0 if self.rotary and site != "decoder_cross" else None
        module = self.build(**{**settled, **more})
        return SystemSubject(module, site, first_position=first, base=BASE)

    @property
    def kind(self) -> Any:
        return NINE[self.system][0]


def _preset(name: str, preset: str) -> dict[str, Any]:
    return dict(NINE[name][0].presets[preset])


# Two heads of keys, norms of queries and keys, and rotary positions.
GROUPED = {"num_key_value_heads": 2, "qk_norm": True, "head_dim": 4}
MODERN = {**GROUPED, "bias": "qkv"}
UNITS = {"ffn_activation": "swiglu", "norm_kind": "rms"}

FORMS = {
    **{name: Form(name, {}) for name in NINE if name != "agreement"},
    "standard-modern-one-key-head": Form("standard", {**MODERN, "num_key_value_heads": 1}, True),
    "standard-without-bias": Form("standard", {"bias": False, "head_dim": 5}),
    "mae-of-two-left-out-modern": Form("mae", {**GROUPED, "dropped_heads": 2, "bias": False}, True),
    "mae-window": Form("mae", {"gate_window": 2}),
    "mae-uniform": Form("mae", {"gate": "uniform"}),
    "gated-elementwise-modern": Form("gated", {**MODERN, "gate": "elementwise"}, True),
    "gated-by-no-input": Form("gated", {"gate": "static", "gate_init": "neutral"}),
    "differential-modern": Form("differential", MODERN, True),
    "moh-of-routed-heads-alone": Form("moh", {"shared_heads": 0, "top_k": 3, "head_dim": 5}),
    "moh-as-the-text-has-it": Form("moh", {"shared_heads": 2, "top_k": 1, "scaled": False}),
    "agreement": Form("agreement", {"num_capsules": 4, "iterations": 2}),
    "agreement-of-the-paper": Form("agreement", {**_preset("agreement", "paper"), "iterations": 1}),
    "agreement-of-the-authors": Form(
        "agreement", {**_preset("agreement", "authors"), "routing": "simple", "num_capsules": 4}
    ),
    "agreement-modern": Form(
        "agreement", {**MODERN, "num_capsules": 4, "activation": "standardised"}, True
    ),
    "weighted-of-the-paper-merged": Form(
        "weighted", {**_preset("weighted", "paper"), "merged": True, "weights": "softmax"}
    ),
    "weighted-modern": Form(
        "weighted", {**GROUPED, **UNITS, "norm": "pre", "bias": False, "top_k": 2}, True
    ),
    "moa-of-all-experts-modern": Form("moa", {**GROUPED, "num_experts": 3, "top_k": 3}, True),
    "moa-of-the-authors": Form("moa", {**_preset("moa", "authors"), "balance": "sequence"}),
    "tim-modern": Form(
        "tim", {**GROUPED, **UNITS, "norm": "pre", "num_mechanisms": 2, "bias": True}, True
    ),
    "tim-of-four-without-exchange": Form("tim", {"num_mechanisms": 4, "exchange_heads": 0}),
}
