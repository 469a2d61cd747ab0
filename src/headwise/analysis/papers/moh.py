"""MoH's figures."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headwise.analysis.cost import count_parameters
from headwise.analysis.papers.figures import Figure, Paper
from headwise.analysis.papers.models import matrices
from headwise.heads.moh import MixtureOfHeads
from headwise.heads.system import Place
from headwise.models.plan import build_system


def moh_figures() -> Paper:
    """Returns the figures of table C, and of §4.4."""
    words = 65_536
    small = {"embed_dim": 768, "ffn_dim": 2048, "layers": 12, "num_heads": 12}
    big = {"embed_dim": 1536, "ffn_dim": 4096, "layers": 24, "num_heads": 16}
    figures = []
    for name, printed, routers, sizes in (
        ("LLM-S", "186M", False, small),
        ("MoH-LLM-S", "186M", True, small),
        ("LLM-B", "881M", False, big),
        ("MoH-LLM-B", "882M", True, big),
    ):
        ours = _llama(words, **sizes) + (_routers(**sizes) if routers else 0)
        figures.append(Figure(name, "params", printed, ours, f"{words:,}"))
    llama = _layer(4096, 32, router="query-norm")
    figures += [
        Figure(
            "routers of MoH-LLM-B",
            "params",
            "+1M",
            _routers(**big),
            remark="the difference of two rounded figures",
        ),
        Figure(
            "Llama 3 8B, heads in force",
            "share",
            "75%",
            (llama.shared_heads + llama.top_k) / llama.num_heads,
            remark="half of 32 heads shared, half of the others selected",
        ),
    ]
    return Paper(
        "Jin et al. 2025, Mixture-of-Head Attention (MoH), table C, §4.4",
        "The models are those of Llama, with two embeddings; what ours counts is transformers' "
        "Llama of these sizes, and the routers of our layers. How many of the heads are shared is "
        "not stated, and changes nothing: a logit for each head and one for each of the two kinds.",
        tuple(figures),
    )


def _llama(words: int, embed_dim: int, ffn_dim: int, layers: int, num_heads: int) -> int:
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=embed_dim,
        intermediate_size=ffn_dim,
        num_hidden_layers=layers,
        num_attention_heads=num_heads,
    )
    with torch.device("meta"):
        return count_parameters(LlamaForCausalLM(config))


def _routers(embed_dim: int, layers: int, num_heads: int, **_: int) -> int:
    place = Place("decoder_self", embed_dim, num_heads, ffn_dim=4 * embed_dim)
    with torch.device("meta"):
        standard = build_system({"system": "standard"}, place)
    return layers * (matrices(_layer(embed_dim, num_heads)) - matrices(standard))


def _layer(embed_dim: int, num_heads: int, **options: Any) -> MixtureOfHeads:
    place = Place("decoder_self", embed_dim, num_heads, ffn_dim=4 * embed_dim)
    with torch.device("meta"):
        return MixtureOfHeads.from_plan(place, **options)
