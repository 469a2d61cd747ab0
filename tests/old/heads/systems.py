"""The systems under test, each in every form, with the reference that each must equal."""

from dataclasses import dataclass, field
from typing import Any

import reference
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.heads.agreement import AgreementAttention
from headwise.heads.weighted import BranchedAttention
from headwise.ops.rotary import Rotary

DIM, HEADS = 12, 4
LETTER = BranchedAttention.presets["paper"]
AUTHORS_OF_AGREEMENT = AgreementAttention.presets["authors"]
QUANTIZABLE = hw.GatedAttention.presets["quantizable-transformers"]
AUTHORS_OF_MOA = hw.MixtureOfAttentionHeads.presets["authors"]
JETMOE = hw.MixtureOfAttentionHeads.presets["jetmoe"]
ROTARY_BASE = 10.0  # tokens that stand near one another are turned far apart
# The blocks of models of today; rotary positions want heads of an even width.
GROUPED = {"num_key_value_heads": 2, "qk_norm": True, "head_dim": 4}
MODERN = {**GROUPED, "bias": "qkv"}
GATED_UNITS = {"ffn_activation": "swiglu", "norm_kind": "rms"}


# Classes, and sizes that are small.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "standard": (hw.MultiHeadAttention, {}),
    "mae": (hw.MixtureOfAttentiveExperts, {"gate_dropout": 0.0, "gate_hidden_dim": 8}),
    "gated": (hw.GatedAttention, {}),
    "differential": (hw.DifferentialAttention, {}),
    "moh": (hw.MixtureOfHeads, {"shared_heads": 2, "top_k": 1}),
    "agreement": (AgreementAttention, {}),
    "branched": (BranchedAttention, {"ffn_dim": 16}),
    "moa": (hw.MixtureOfAttentionHeads, {"num_experts": 5, "top_k": 2, "head_dim": 3}),
}


@dataclass(frozen=True)
class System:
    """How to build one form of a system, and what it must compute."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    rotary: bool = False

    def build(self, dim: int = DIM, *, dtype=torch.float64, train=False, **more) -> Any:
        """A module with random parameters and, if there is a batch norm, random statistics."""
        kind, sizes = KINDS[self.kind]
        heads = () if self.kind == "moa" else (HEADS,)
        module = kind(dim, *heads, **{**sizes, **self.options, **more})
        if self.rotary:
            module.register_forward_pre_hook(with_positions, with_kwargs=True)
        return randomize(module.to(dtype)).train(train)

    def parameters(self, module: Any, *, in_self_attention: bool = True) -> dict[str, Any]:
        """What the loops compute with, by name: the base of rotary positions too."""
        turns = {"rotary": ROTARY_BASE} if self.rotary and in_self_attention else {}
        return {**dict(module.named_parameters()), **dict(module.named_buffers()), **turns}

    def reference(
        self,
        module: Any,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        **masks: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Output, what `routing.weights` holds, and the auxiliary loss, from plain loops."""
        p = self.parameters(module, in_self_attention=key is None)
        padding = query_padding_mask
        if padding is None and key is None:
            padding = as_padding(masks.get("key_padding_mask"))
        is_cross = key is not None
        key = query if key is None else key
        given = (p, query, key, key if value is None else value)
        if self.kind == "standard":
            return reference.standard(*given, HEADS, **masks), None, None
        if self.kind == "gated":
            return *reference.gated(*given, HEADS, module, **masks), None
        if self.kind == "differential":
            return *reference.differential(*given, HEADS, **masks), None
        if self.kind == "agreement":
            return *reference.agreement(*given, HEADS, module, **masks), None
        if self.kind == "branched":
            how = (module.weights, module.merged, module.top_k)
            weights = reference.branch_weights(p, HEADS, *how)
            output = reference.branched(*given, HEADS, module, weights, **masks)
            return output, torch.stack(weights[1]), None
        if self.kind == "moh":
            factor = module.routed_heads if module.scaled_balance else 1
            loss = module.balance_coef * factor * reference.moh_loss(p, query, module, padding)
            return *reference.moh(*given, HEADS, module, **masks), loss
        if self.kind == "moa":
            balance, z = reference.moa_losses(
                p, query, module.top_k, padding, module.balance == "sequence"
            )
            loss = module.balance_coef * balance + module.z_coef * z
            tokens = len(real_positions(query, padding)) if module.auxiliary == "per batch" else 1
            return *reference.moa(*given, module, **masks), loss / max(1, tokens)
        sight, each = self.sight(module, query, padding, is_cross, **masks)
        if module.gate is None:
            uniform = torch.full((module.num_experts,), 1 / module.num_experts).to(query)
            gates = [[uniform] * query.size(1) for _ in query]
        else:
            window = module.gate_window if each else None
            gates = reference.mae_gates(p, query, sight, window, module.gate.scaling == "root")
        scales = None
        if getattr(module.gate, "scale", None) is not None:
            scales = reference.mae_gates(p, query, sight, window, scales=True)
        output = reference.mae(*given, HEADS, module.dropped_heads, gates, scales, **masks)
        stacked = torch.stack([torch.stack(row) for row in gates])
        return output, stacked if each else stacked[:, 0], None

    def sight(self, module, query, padding, is_cross, **masks) -> tuple[Any, bool]:
        """What each gate of MAE sees, and whether each position has one of its own."""
        causal = masks.get("is_causal", False) or module.causal_queries
        unmasked = reference.mae_sight(query, padding, causal)
        if is_cross or module.gate is None:
            return unmasked, causal
        sight = reference.mae_sight(query, padding, causal, HEADS, **masks)
        each = any(sight[b][t] != unmasked[b][t] for b, t in real_positions(query, padding))
        return sight, causal or each

    def refuses(self, module, query, **masks) -> bool:
        """Whether a window of MAE's gates counts back from positions that see later ones."""
        causal = masks.get("is_causal", False) or getattr(module, "causal_queries", False)
        if self.kind != "mae" or not module.gate_window or causal:
            return False
        padding = as_padding(masks.get("key_padding_mask"))
        return self.sight(module, query, padding, False, **masks)[1]


def with_positions(module, args, kwargs):
    """Gives a self-attention or a layer rotary positions: behind what its cache has seen."""
    others = (*args, kwargs.get("key")) if module.replaces != "layer" else ()
    if any(x is not None and x is not args[0] for x in others) or args[0].dim() != 3:
        return None
    cache = kwargs.get("cache")
    offset = 0 if cache is None else cache.get_seq_length()
    positions = offset + torch.arange(args[0].size(1), device=args[0].device)
    return args, {**kwargs, "rotary": Rotary(positions, {"rope_theta": ROTARY_BASE})}


def as_padding(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or mask.dtype == torch.bool else mask == float("-inf")


def real_positions(x: Tensor, padding: Tensor | None) -> list[tuple[int, int]]:
    rows, columns = range(x.size(0)), range(x.size(1))
    return [(b, t) for b in rows for t in columns if padding is None or not padding[b, t]]


SYSTEMS = {
    "standard": System("standard"),
    "standard without bias": System("standard", {"bias": False, "head_dim": 5}),
    "mae-7": System("mae"),
    "mae-6": System("mae", {"dropped_heads": 2}),
    "mae window": System("mae", {"gate_window": 2}),
    "mae causal queries": System("mae", {"causal_queries": True}),
    "mae of scaled gates": System("mae", {"gate_scaling": "root"}),
    "mae of scaled heads": System("mae", {"dropped_heads": 2, "scaled_heads": True}),
    "uni-mae": System("mae", {"gate": "uniform"}),
    "moa": System("moa"),
    "moa dense": System("moa", {"num_experts": 3, "top_k": 3}),
    "agreement-em": System("agreement"),
    "agreement-em wide capsules": System(
        "agreement", {"num_capsules": 4, "iterations": 2, "inverse_temperature": 20.0}
    ),
    "agreement-simple": System("agreement", {"routing": "simple"}),
    "agreement-simple unsquashed": System(
        "agreement",
        {"routing": "simple", "squash": False, "num_capsules": 2, "head_dim": 5, "bias": False},
    ),
    "agreement-em of standardised costs": System(
        "agreement", {"activation": "standardised", "num_capsules": 4, "iterations": 2}
    ),
    "agreement-simple of the authors' code": System(
        "agreement",
        {**AUTHORS_OF_AGREEMENT, "routing": "simple", "num_capsules": 4, "head_dim": 5},
    ),
    "branched": System("branched", {**LETTER}),
    "branched gelu": System("branched", {**LETTER, "ffn_activation": "gelu"}),
    "branched split": System("branched", {**LETTER, "ffn": "split", "head_dim": 5, "bias": False}),
    "branched softmax top-2": System("branched", {**LETTER, "weights": "softmax", "top_k": 2}),
    "branched merged": System("branched", {**LETTER, "merged": True}),
    "branched layer": System("branched"),
    "branched layer shared": System("branched", {"ffn": "shared"}),
    "branched layer pre-norm": System(
        "branched",
        {"norm": "pre", "head_dim": 5, "bias": False},
    ),
    # But for the noise in training.
    "moa of the authors' code": System("moa", {**AUTHORS_OF_MOA, "noisy": False, "noise_floor": 0}),
    "moa with biases": System("moa", {"expert_bias": True, "bias": True, "head_dim": 2}),
    "moa balanced by sequence": System("moa", {"balance": "sequence"}),
    "gated": System("gated"),
    "gated elementwise": System("gated", {"gate": "elementwise", "head_dim": 5, "bias": False}),
    "gated from a neutral start": System("gated", {"gate_start": "neutral"}),
    "gated by a softplus": System(
        "gated", {"gate_activation": "softplus", "gate": "elementwise", "gate_bias": True}
    ),
    "gated by a softplus of few entries from a neutral start": System(
        "gated", {"gate_activation": "softplus", "gate_inputs": 5, "gate_start": "neutral"}
    ),
    "gated by shares of the input": System("gated", dict(QUANTIZABLE)),
    "gated by elements of shares of the input": System(
        "gated",
        {
            "gate_activation": "doubled-sigmoid",
            "gate": "elementwise",
            "gate_inputs": "head",
            "head_dim": 5,
            "bias": False,
        },
    ),
    "gated by numbers that no input changes": System(
        "gated", {"gate_inputs": 0, "gate_bias": True, "gate": "elementwise", "head_dim": 5}
    ),
    "differential": System("differential"),
    "differential without bias": System("differential", {"bias": False, "head_dim": 5}),
    "moh": System("moh", {"shared_heads": 1, "top_k": 2}),
    "moh of all heads": System("moh", {"shared_heads": 2, "top_k": 2}),
    "moh of routed heads": System("moh", {"shared_heads": 0, "top_k": 3, "head_dim": 5}),
    "moh as the text has it": System(
        "moh", {"scaled_gates": False, "scaled_balance": False, "bias": False}
    ),
    "moh by query norms": System("moh", {"shared_heads": 1, "top_k": 2, "router": "query-norm"}),
    "moh of routed heads by query norms": System(
        "moh", {"shared_heads": 0, "top_k": 1, "router": "query-norm", "scaled_balance": False}
    ),
    "moa dense with biases": System("moa", {"expert_bias": True, "num_experts": 3, "top_k": 3}),
    "agreement-em of the authors' code": System("agreement", dict(AUTHORS_OF_AGREEMENT)),
    "branched fixed": System("branched", {**LETTER, "weights": "fixed", "ffn": "full"}),
    "branched layer full": System("branched", {"ffn": "full", "start": "random"}),
    "branched layer uniform": System("branched", {"weights": "uniform"}),
    "standard, modern": System("standard", MODERN, rotary=True),
    "standard, one key head": System("standard", {**MODERN, "num_key_value_heads": 1}, rotary=True),
    "mae, modern": System("mae", {**GROUPED, "bias": False}, rotary=True),
    "gated, modern": System("gated", {**MODERN, "gate": "elementwise"}, rotary=True),
    "differential, modern": System("differential", MODERN, rotary=True),
    "moh, modern": System("moh", {**MODERN, "shared_heads": 1, "top_k": 2}, rotary=True),
    "moh by query norms, modern": System(
        "moh", {**GROUPED, "shared_heads": 1, "top_k": 2, "router": "query-norm"}, rotary=True
    ),
    "agreement-em, modern": System("agreement", {**MODERN, "num_capsules": 4}, rotary=True),
    "agreement-simple, modern": System(
        "agreement", {**MODERN, "routing": "simple", "num_capsules": 4}, rotary=True
    ),
    "branched, modern": System("branched", {**LETTER, **MODERN, **GATED_UNITS}, rotary=True),
    "branched split, modern": System(
        "branched", {**LETTER, **MODERN, **GATED_UNITS, "ffn": "split"}, rotary=True
    ),
    "branched layer, modern": System(
        "branched", {**GROUPED, **GATED_UNITS, "bias": False, "norm": "pre"}, rotary=True
    ),
    "branched layer shared, modern": System(
        "branched",
        {**MODERN, **GATED_UNITS, "ffn_activation": "geglu", "ffn": "shared"},
        rotary=True,
    ),
    "moa of two key heads": System("moa", {**GROUPED, "qk_norm": False}, rotary=True),
    "moa, modern": System("moa", {**GROUPED, **JETMOE}, rotary=True),
    "moa dense, modern": System(
        "moa", {**MODERN, "expert_bias": True, "num_experts": 3, "top_k": 3}, rotary=True
    ),
}
MAIN = {name: SYSTEMS[name] for name in ("standard", "mae-7", "moa", "moa dense")}
GATED = {name: system for name, system in SYSTEMS.items() if name.startswith("mae")}


@torch.no_grad()
def randomize(module: nn.Module) -> nn.Module:
    """Fill every parameter and running statistic with random numbers: a router that starts at
    zero, or a batch norm at mean 0 and variance 1, would hide mistakes.
    """
    for parameter in module.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.5)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)
    return module


def padding(*lengths: int, time: int, left: bool = False) -> Tensor:
    """Boolean `(batch, time)`, `True` at padding."""
    rows = [[False] * n + [True] * (time - n) for n in lengths]
    return torch.tensor([row[::-1] if left else row for row in rows])


def as_float(mask: Tensor) -> Tensor:
    """The float mask that says the same."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, float("-inf"))


def random_mask(*shape: int) -> Tensor:
    """A boolean mask that blocks a third of all pairs, and one query altogether."""
    mask = torch.rand(shape) < 0.35
    mask[..., -1, :] = True
    return mask
