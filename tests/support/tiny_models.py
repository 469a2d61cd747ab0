"""Every model of ours with every system, tiny, with parameters that make each part count."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise as hw

# The one name that is not public: the walk over a model that finds its systems.
from headwise.models.inspect import find_systems
from headwise.testing.laws import Batch, Result

VOCABULARY, PAD, START, END, CLASSES, BINS = 23, 0, 1, 2, 3, 9

PLANS: dict[str, Any] = {
    "standard": "standard",
    "weighted": "weighted",
    "agreement": {"system": "agreement", "num_capsules": 4},
    "mae": "mae",
    "tim": {"system": "tim", "layers": "all"},
    "moa": {"system": "moa", "size": "2K5E4D"},
    "moh": {"system": "moh", "shared_heads": 1, "top_k": 2},
    "gated": "gated",
    "differential": "differential",
}
QUICK = ("standard", "mae", "moa")

_SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "dropout": 0.0}
_WORDS = {"vocab_size": VOCABULARY, "layers": 2, **_SIZES}
_PAIRS = {"vocab_size": VOCABULARY, "encoder_layers": 2, "decoder_layers": 2, **_SIZES}
_SOUND = {"sampling_rate": 500, "front_channels": [8], "lookahead": 1, "layers": 2, **_SIZES}
_PIXELS = {"positions": "learned", "max_length": 16, "share_embeddings": False}
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "causal": (hw.CausalLM, _WORDS),
    "adaptive": (hw.CausalLM, {**_WORDS, "adaptive_cutoffs": [6, 12]}),
    "images": (hw.CausalLM, {**_WORDS, **_PIXELS}),
    "masked": (hw.MaskedLM, _WORDS),
    "classifier": (hw.SequenceClassifier, {**_WORDS, "num_labels": CLASSES}),
    "regression": (hw.SequenceClassifier, {**_WORDS, "problem": "regression"}),
    "seq2seq": (hw.Seq2SeqLM, {**_PAIRS, "label_smoothing": 0.0}),
    "speech": (hw.SpeechEnhancer, _SOUND),
}
DECODERS = ("causal", "adaptive", "images", "seq2seq", "speech")
# The blocks of models of today, as Llama and Qwen have them.
MODERN = {
    "positions": "rotary",
    "rope_parameters": {"rope_theta": 50.0},
    "norm": "pre",
    "norm_kind": "rms",
    "ffn_activation": "swiglu",
    "num_key_value_heads": 2,
    "qk_norm": True,
    "bias": False,
    "scale_embeddings": False,
}


_POSITIONS: list[dict[str, Any]] = [
    {"positions": "sinusoidal"},
    {"positions": "learned", "max_positions": 16},
    {"positions": "rotary", "rope_parameters": {"rope_theta": 50.0}},
]
_BLOCKS: dict[str, list[Any]] = {
    "norm": ["post", "pre"],
    "norm_kind": ["layer", "rms"],
    "ffn_activation": ["relu", "gelu", "swiglu"],
    "num_key_value_heads": [None, 2],
    "qk_norm": [False, True],
    "bias": [True, False, "qkv"],
    "scale_embeddings": [True, False],
    "embedding_norm": [False, True],
}


@st.composite
def blocks(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """Options of the blocks of a model; any of them may stand beside any other."""
    options = {name: draw(st.sampled_from(values)) for name, values in _BLOCKS.items()}
    if kind == "speech":
        return options
    options |= draw(st.sampled_from(_POSITIONS))
    if kind in ("causal", "masked"):
        options["share_embeddings"] = draw(st.booleans())
    elif kind == "seq2seq":
        options["share_embeddings"] = draw(st.sampled_from(["all", "target", "none"]))
    elif kind in ("classifier", "regression"):
        options["pooling"] = draw(st.sampled_from(["mean", "first"]))
    return options


def config(kind: str, system: Any = "standard", **options: Any) -> Any:
    """The configuration of a kind of model; `system` is a key of PLANS, or any other plan."""
    model_class, sizes = KINDS[kind]
    plan = PLANS.get(system, system) if isinstance(system, str) else system
    return model_class.config_class(**{**sizes, "attention": plan, **options})


def model(kind: str, system: Any = "standard", *, seed: int = 0, **options: Any) -> Any:
    """A model in evaluation and in float64, whose gates depend strongly on their input."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes as long as a pass
    network = KINDS[kind][0](config(kind, system, **options))
    gates = {id(parameter) for parameter in hw.gate_parameters(network)}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.7 if id(parameter) in gates else 0.1))
        for norm in network.modules():
            if isinstance(norm, nn.BatchNorm1d):
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 1.5)
    return network.double().eval()


def systems_of(network: nn.Module) -> dict[tuple[str, int], nn.Module]:
    """The system at each site and layer of a model."""
    return {(system.site, system.layer): system for system in find_systems(network).values()}


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Random tokens that are not special."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def inputs(kind: str, rows: int = 3, time: int = 6, seed: int = 1) -> dict[str, Tensor]:
    """What a model reads, without padding and labels; a target is as long as its source."""
    if kind == "speech":
        random = torch.Generator().manual_seed(seed)
        return {"inputs": 3 * torch.rand(rows, time, BINS, dtype=torch.float64, generator=random)}
    batch = {"input_ids": tokens(rows, time, seed=seed)}
    if kind == "seq2seq":
        batch["decoder_input_ids"] = tokens(rows, time, seed=seed + 1)
    return batch


def labels(kind: str, rows: int = 3, time: int = 6, seed: int = 2) -> Tensor:
    """Labels, a third of which is -100, but never the last."""
    random = torch.Generator().manual_seed(seed)
    if kind == "classifier":
        drawn = torch.randint(CLASSES, (rows,), generator=random)
    elif kind in ("regression", "speech"):
        shape = (rows,) if kind == "regression" else (rows, time, BINS)
        drawn = torch.randn(shape, dtype=torch.float64, generator=random)
    else:
        drawn = tokens(rows, time, seed=seed)
    left_out = torch.rand(drawn.shape, generator=random) < 0.3
    left_out.view(-1)[-1] = False
    return drawn.masked_fill(left_out, -100)


class ModelSubject:
    """A whole model, as the laws of `headwise.testing` see it: it reads tokens, or frames.

    Of an encoder-decoder the sequence is the target, and the memory is the source.
    """

    def __init__(self, kind: str, module: Any) -> None:
        self.kind, self.module = kind, module
        self.causal = kind in DECODERS

    def draw(self, rows: int, time: int, seed: int) -> Batch:
        if self.kind == "seq2seq":
            return Batch(tokens(rows, time, seed=seed), tokens(rows, 4, seed=seed + 1))
        return Batch(*inputs(self.kind, rows, time, seed).values())

    def __call__(self, batch, *, padding=None, mask=None, cache=None) -> Result:
        assert mask is None, "models take no masks of attention"
        inputs = {self.module.main_input_name: batch.sequence, "attention_mask": padding}
        if self.kind == "seq2seq":
            inputs = {"input_ids": batch.memory, "attention_mask": batch.memory_padding}
            inputs |= {"decoder_input_ids": batch.sequence, "decoder_attention_mask": padding}
        inputs = {name: ~x if "mask" in name else x for name, x in inputs.items() if x is not None}
        if cache is not None:
            inputs |= {"cache": cache, "use_cache": True}
        with hw.record(self.module) as recorded:
            out = self.module(**inputs)
        # The encoder of two stacks decides for positions of the source, not of the sequence.
        decisions = [
            routing.weights
            for path, passes in recorded.items()
            for routing in passes
            if self.kind != "seq2seq" or find_systems(self.module)[path].site != "encoder_self"
        ]
        return Result(out.logits, decisions, hw.auxiliary_loss(self.module))

    def new_cache(self) -> Any:
        return self.module.new_cache()
