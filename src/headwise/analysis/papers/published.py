"""The figures of all papers, read from `published.yaml`, and the models that ours are counted on.

Models are built on the meta device, where they take no memory.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from headwise.analysis.cost import count_parameters, forward_macs, parameters_by_part
from headwise.analysis.papers.figures import Figure, Paper
from headwise.heads.system import Macs, Place
from headwise.models.base import HeadwiseModel
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.models.parameters import gate_parameters
from headwise.models.plan import build_system
from headwise.models.seq2seq import Seq2SeqLMConfig
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.models.transformer import Decoder, Encoder
from headwise.plain_yaml import read_yaml
from headwise.pretrained.attaching import output_parameters


def published_figures() -> list[Paper]:
    """Returns the figures of all papers, in the order of publication."""
    file = resources.files("headwise") / "analysis" / "papers" / "published.yaml"
    return [
        Paper(paper["title"], paper["note"], tuple(map(_figure, paper["figures"])))
        for paper in read_yaml(file.read_text(encoding="utf-8"))["papers"]
    ]


def _figure(row: Mapping[str, Any]) -> Figure:
    words = row.get("words", 0)
    ours: Any = _sum(row["ours"], words) if "ours" in row else None
    if "over" in row:
        ours = ours / _sum(row["over"], words)
    return Figure(
        row["model"],
        row.get("what", "params"),
        row["printed"],
        1 - ours if row.get("saving") else ours,
        f"{words:,}" if words else "",
        row.get("remark", ""),
        row.get("exact", False),
    )


def _sum(terms: Any, words: int) -> Any:
    return sum(_counted(term, words) for term in (terms if isinstance(terms, list) else [terms]))


def _counted(term: Any, words: int) -> Any:
    """The number that a term of the table stands for."""
    if not isinstance(term, Mapping):
        return term
    sizes = dict(term)
    kind = next(key for key in sizes if key in _MODELS)
    plan, part, times = sizes.pop(kind), sizes.pop("part", "all"), sizes.pop("times", 1)
    with torch.device("meta"):
        model = _MODELS[kind](plan, words, **sizes)
    return times * _PARTS[part](model)


def encoder_decoder(plan: Any, words: int, **sizes: Any) -> nn.ModuleDict:
    """Returns a translation model with one embedding for all, by default the base Transformer."""
    config = Seq2SeqLMConfig(attention=plan, **sizes)
    return nn.ModuleDict(
        {
            "encoder": Encoder(config, vocab_size=0),
            "decoder": Decoder(config, vocab_size=0),
            "embedding": nn.Embedding(words, config.embed_dim),
        }
    )


def masked_model(plan: Any, words: int, **sizes: Any) -> MaskedLM:
    """Returns a masked language model with 512 learned positions."""
    return MaskedLM(MaskedLMConfig(words or 32, attention=plan, positions="learned", **sizes))


def image_model(plan: Any, words: int, **sizes: Any) -> CausalLM:
    """Returns the TIM paper's model of images of 32×32 in 512 colours."""
    config = CausalLMConfig(
        words + 1,  # the token before the first pixel
        attention=plan,
        norm="pre",
        share_embeddings=False,
        positions="learned",
        max_positions=1024,
        adaptive_cutoffs=None,
        **sizes,
    )
    return CausalLM(config)


def language_model(plan: Any, words: int) -> CausalLM:
    """Returns the language model of Baevski and Auli for WikiText-103."""
    config = CausalLMConfig(
        vocab_size=words,
        embed_dim=1024,
        num_heads=8,
        ffn_dim=4096,
        layers=16,
        attention=plan,
        norm="pre",
        adaptive_cutoffs=[20_000, 60_000],
    )
    return CausalLM(config)


def _speech_enhancer(plan: Any, _: int, **sizes: Any) -> SpeechEnhancer:
    return SpeechEnhancer(SpeechEnhancerConfig(attention=plan, **sizes))


def _llama(
    _: Any, words: int, embed_dim: int, ffn_dim: int, layers: int, num_heads: int
) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=embed_dim,
        intermediate_size=ffn_dim,
        num_hidden_layers=layers,
        num_attention_heads=num_heads,
    )
    return LlamaForCausalLM(config)


def _layer(plan: Any, _: int, embed_dim: int, num_heads: int) -> nn.Module:
    spec = plan if isinstance(plan, dict) else {"system": plan}
    return build_system(spec, Place("decoder_self", embed_dim, num_heads, ffn_dim=4 * embed_dim))


def _macs(model: nn.Module) -> Macs:
    """Those of 128 tokens of a masked language model, or of 10 in each stack for translation."""
    if isinstance(model, HeadwiseModel):
        return forward_macs(model, {"encoder": 128})
    output = 10 * _size(model.get_submodule("embedding").parameters())
    return forward_macs(model, {"encoder": 10, "decoder": 10}) + Macs(output, 0)


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


_MODELS: dict[str, Callable[..., nn.Module]] = {
    "stack": encoder_decoder,
    "masked": masked_model,
    "image": image_model,
    "language": language_model,
    "speech": _speech_enhancer,
    "llama": _llama,
    "layer": _layer,
}
_PARTS: dict[str, Callable[[Any], Any]] = {
    "all": count_parameters,
    "layers": lambda model: count_parameters(model.encoder.layers),
    "routing": lambda model: parameters_by_part(model).routing,
    "gates": lambda model: _size(gate_parameters(model)),
    "outputs": lambda model: _size(output_parameters(model)),
    # Without biases and scalars.
    "matrices": lambda model: _size(
        parameter for name, parameter in model.named_parameters() if name.endswith("weight")
    ),
    "heads in force": lambda model: (model.shared_heads + model.top_k) / model.num_heads,
    "linear MACs": lambda model: _macs(model).linear,
    "MACs": lambda model: sum(_macs(model)),
}
