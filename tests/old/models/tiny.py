"""Tiny models of every plan, with weights that make every part of them count."""

from typing import Any

import torch
from torch import Tensor, nn

import headwise as hw

VOCABULARY, PAD, START, END = 23, 0, 1, 2
MOA = {"system": "moa", "size": "2K5E4D"}
PLANS: dict[str, Any] = {
    "standard": "standard",
    "mae": "mae",
    "mae-6, window": {
        "encoder_self": {"system": "mae", "dropped_heads": 2},
        "decoder_self": {"system": "mae", "gate_window": 2},
        "decoder_cross": {"system": "mae", "gate_window": 3},
    },
    "uni-mae": {
        site: {"system": "mae", "gate": "uniform"}
        for site in ("encoder_self", "decoder_self", "decoder_cross")
    },
    "moa": dict.fromkeys(("encoder_self", "decoder_self", "decoder_cross"), MOA),
    "weighted": "weighted",
    "weighted split": {"system": "weighted", "ffn": "split"},
    "agreement": "agreement",
    "simple routing": {"system": "agreement", "routing": "simple", "num_capsules": 8},
    "tim": {"system": "tim", "layers": "all"},
    "gated": "gated",
    "differential": "differential",
    "moh": {"system": "moh", "shared_heads": 1, "top_k": 2},
    "mixed": {
        "encoder_self": [{**MOA, "layers": [0]}, {"system": "mae", "layers": [1]}],
        "decoder_self": {**MOA, "layers": [1]},
        "decoder_cross": "mae",
    },
    "all mixed": {
        "encoder_self": [{"system": "tim", "layers": [0]}, {"system": "agreement", "layers": [1]}],
        "decoder_self": [{"system": "tim", "layers": [0]}, {**MOA, "layers": [1]}],
        "decoder_cross": {"system": "weighted", "layers": [1]},
    },
}


def config(plan: Any = "standard", **options: Any) -> hw.Seq2SeqLMConfig:
    sizes = {
        "vocab_size": VOCABULARY,
        "embed_dim": 16,
        "num_heads": 4,
        "ffn_dim": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
    }
    return hw.Seq2SeqLMConfig(**{**sizes, "attention": plan, **options})


def model(plan: Any = "standard", *, seed: int = 0, **options: Any) -> hw.Seq2SeqLM:
    """In evaluation, with attention and gates that depend strongly on their input."""
    torch.manual_seed(seed)
    made = hw.Seq2SeqLM(config(plan, **options))
    strengthen(made)
    return made.eval()


@torch.no_grad()
def strengthen(made: nn.Module) -> None:
    for name, parameter in made.named_parameters():
        if ".gate." in name or "router" in name or "gate_proj" in name:
            parameter.add_(torch.randn_like(parameter) * 0.7)
        elif "attention." in name:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    for norm in made.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)


def tokens(*shape: int) -> Tensor:
    """Random ordinary tokens."""
    return torch.randint(3, VOCABULARY, shape)


def padded(lengths: list[int], time: int) -> tuple[Tensor, Tensor]:
    """Tokens with padding behind, and their attention mask."""
    ids = tokens(len(lengths), time)
    mask = torch.arange(time) < torch.tensor(lengths).unsqueeze(1)
    return ids.masked_fill(~mask, PAD), mask.long()
