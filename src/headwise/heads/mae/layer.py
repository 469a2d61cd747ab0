"""Mixture of attentive experts: gates over experts that each leave out some of the heads."""

import struct
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import Self, Unpack

from headwise.heads.attention import Inputs, Projections
from headwise.heads.mae.declared import ABLATIONS, WORDS, GateInit, count_experts
from headwise.heads.mae.gate import ExpertGate
from headwise.heads.mae.means import each_decides, look
from headwise.heads.mae.rule import BlockCoordinateDescent, Step
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.system import Macs, Place, Routing
from headwise.ops.bounds import check_positive, checked
from headwise.ops.precision import without_autocast
from headwise.ops.recompute import Passes
from headwise.ops.replicas import uniform_noise
from headwise.ops.twins import is_transformed


class MixtureOfAttentiveExperts(MultiHeadAttention):
    """Multi-head attention as a gated mixture of experts, each made of h − t of the h heads.

    Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
    https://arxiv.org/abs/2005.06537 (MAE).

        y = Σ_S g_S(X) · h/(h−t) Σ_{j∉S} oⱼWⱼ = Σⱼ aⱼ oⱼWⱼ,  aⱼ = h/(h−t)·(1 − Σ_{S∋j} g_S)

    with one expert for each set S of t heads that are left out. A uniform gate gives a = 1, which
    is standard attention.

    The gate is batch norm, a linear map, tanh, dropout, a linear map and softmax of the mean of
    the queries' inputs over time, padding excluded. The paper's mean over all positions would show
    a decoder its own future: where the queries are a causal sequence (`is_causal`, or
    `causal_queries` for a decoder's cross-attention) position t has a gate of its own, of the mean
    of the positions up to t; and where an `attn_mask` of self-attention hides anything but padding,
    of what row t of it lets some head see. A float mask hides by numbers of -1000 or less. Such
    gates normalise by batch norm's running statistics also in training.

    Passes in training that gradients go through move the running statistics, once also under
    `torch.utils.checkpoint`; others where the norm has no momentum, as for `update_bn`. A norm in
    evaluation and one that is frozen keep them; a frozen gate computes as in evaluation.

    `step` says how the layer computes while training (evaluation always mixes); the rule
    `BlockCoordinateDescent` switches it:

    - `"joint"`: mix all experts; everything learns together (the paper's NOBCD);
    - `"gate"`: mix all experts, for a G step, in which the gates learn;
    - `"expert"`: an F step, in which the gate is fixed. One expert is drawn from it for each
      training instance, which is a sequence, and used alone. Causal gates draw each from its own
      distribution, by noise that the sequence shares;
    - `"expert by position"`: the same, with noise of its own for each causal gate.

    Args:
        num_heads: h.
        dropped_heads: t, how many heads an expert leaves out (MAE-7 of 8 heads: 1; MAE-6: 2).
        gate: `"learned"`, or `"uniform"` for UNI-MAE, which has no gate parameters.
        gate_hidden_dim: width of the gate's hidden layer.
        gate_dropout: dropout after that layer.
        gate_init: how the gate's two maps are drawn: `"zero"` has the second at zero, so that all
            experts are equal at the start; `"default"` draws both as `nn.Linear` does, `"xavier"`
            by Glorot's bound, with which an untrained gate is far from even already.
        gate_scaling: `"root"` multiplies by √n what the mean of n positions deviates from that of
            batch norm. The mean of more positions varies less, so that late causal gates are else
            nearly equal.
        gate_statistics: what batch norm has in F steps: those that were `"kept"` in G steps, or
            `"fresh"` ones, of the batch, which move in F steps too.
        gate_window: how many of the last inputs a causal gate averages, of those that it sees; all
            of them if None (the paper averages 100 in language modelling).
        scaled_heads: whether the gate also scales each head by 2σ(W₃ u), u being its hidden layer,
            so that aⱼ reaches from 0 to 2h/(h−t), and not to h/(h−t) only. Over frozen heads these
            scales are what nothing else can learn. They are ours, not the paper's, and start at 1.
        causal_queries: the queries are a causal sequence though the keys are not.
        embed_dim, projections: as in `MultiHeadAttention`, which has the same options.

    Shape:
        As `MultiHeadAttention`. `routing.weights` holds the gates g, `(batch, experts)` or, where
        gates are causal, `(batch, queries, experts)`; experts in the order of
        `itertools.combinations(range(h), t)`, each tuple the heads left out.

    Raises:
        ValueError: `dropped_heads` not below `num_heads`; more than 100,000 experts; sizes that do
            not fit together. In a call: `gate_window`, or a filled cache, and an `attn_mask`.

    Example:
        >>> attention = MixtureOfAttentiveExperts(embed_dim=32, num_heads=4)
        >>> attention(torch.randn(2, 5, 32)).routing.weights.shape
        torch.Size([2, 4])
        >>> attention(torch.randn(2, 5, 32), is_causal=True).routing.weights.shape
        torch.Size([2, 5, 4])
    """

    routing_parameters = ("gate",)
    rule = BlockCoordinateDescent
    ablations = ABLATIONS
    words = WORDS
    shown = (*MultiHeadAttention.shown, "dropped_heads")
    left_out: Tensor

    @checked
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropped_heads: int = 1,
        gate: Literal["learned", "uniform"] = "learned",
        gate_hidden_dim: int = 256,
        gate_dropout: float = 0.1,
        gate_init: GateInit = "zero",
        gate_scaling: Literal["none", "root"] = "none",
        gate_statistics: Literal["kept", "fresh"] = "kept",
        gate_window: int | None = None,
        scaled_heads: bool = False,
        causal_queries: bool = False,
        **projections: Unpack[Projections],
    ) -> None:
        experts = count_experts(num_heads, dropped_heads)
        scaled = num_heads if scaled_heads else 0
        if scaled_heads and gate == "uniform":
            raise ValueError(
                "scaled_heads is True, expected False where gate is 'uniform': it is the learned "
                "gate that scales heads; leave out one of the two"
            )
        how = (gate_hidden_dim, gate_dropout, gate_init, gate_scaling, gate_statistics, scaled)
        window = 1 if gate_window is None else gate_window
        check_positive(gate_window=window, gate_hidden_dim=gate_hidden_dim)
        super().__init__(embed_dim, num_heads, **projections)
        self.dropped_heads = dropped_heads
        self.num_experts = experts
        self.gate_window = gate_window
        self.causal_queries = causal_queries
        self.kept = kept_shares(num_heads, dropped_heads)
        self.step: Step = "joint"
        self.passes = Passes()
        left_out = left_out_heads(num_heads, dropped_heads)  # (experts, heads)
        self.register_buffer("left_out", left_out, persistent=False)
        self.gate = ExpertGate(embed_dim, experts, *how) if gate == "learned" else None

    @classmethod
    def from_plan(cls, place: Place, **options: Any) -> Self:
        # A decoder's queries are a causal sequence also in its cross-attention.
        return super().from_plan(place, causal_queries=place.site == "decoder_cross", **options)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "gate"):  # not yet while the base class is built
            self.left_out.copy_(left_out_heads(self.num_heads, self.dropped_heads))
            if self.gate is not None:
                self.gate.reset_parameters()

    def start_neutral(self) -> None:
        """The gate's output layer starts at zero: each head is scaled by 1, but in F steps."""
        if self.gate is not None:
            self.gate.reset_parameters("zero")

    def combine(self, heads: Tensor, inputs: Inputs, choice: Any) -> tuple[Tensor, Routing]:
        compiles = torch.compiler.is_compiling() or is_transformed()
        remembers = self.training and not compiles
        facts = self.passes.facts(inputs.query) if remembers else {}
        step = facts.setdefault("step", self.step)
        draws = self.training and step in ("expert", "expert by position")
        # (batch, 1 or queries, experts), and of heads
        gates, of_heads, each = self._gates(inputs, facts, fixed=draws)
        gates = self.in_force(gates)
        mixture = draw_expert(gates, self._noise(gates, step)) if draws else gates
        scales = None  # a uniform mixture scales every head by 1
        if draws or self.ablation is not None or self.gate is not None:
            how = (self.dropped_heads, self.kept[mixture.dtype])
            scales = head_scales(mixture, self.left_out, *how)
            scales = scales if of_heads is None else scales * of_heads
            scales = scales.unsqueeze(-1)
        return self.join(heads, scales), Routing(gates if each else gates.squeeze(1))

    def _gates(
        self, inputs: Inputs, facts: dict[str, Any], fixed: bool
    ) -> tuple[Tensor, Tensor | None, bool]:
        """Gates and scales of heads, and whether each query has its own."""
        causal = self.causal_queries or inputs.is_causal
        if self.gate is None:
            query, each = inputs.query, each_decides(inputs, causal)
            shape = (query.size(0), query.size(1) if each else 1, self.num_experts)
            dtype = torch.promote_types(query.dtype, torch.float32)  # that of learned gates
            return query.new_full(shape, 1 / self.num_experts, dtype=dtype), None, each
        view = look(inputs, causal, self.num_heads, self.gate_window)
        learns = torch.is_grad_enabled()
        facts.setdefault("moves", learns)
        with torch.set_grad_enabled(learns and not fixed):
            return *self.gate(view, facts, fixed=fixed), view.each

    def _noise(self, gates: Tensor, step: Step) -> Tensor:
        """For each sequence, or each of its gates, `(batch, 1 or queries, experts)`."""
        draws = 1 if step == "expert" else gates.size(1)
        noise = uniform_noise(gates.size(0), draws * self.num_experts, gates.device)
        return noise.unflatten(1, (draws, self.num_experts))

    def ablation_ranges(self) -> dict[str, range]:
        return {"expert": range(self.num_experts), "head": range(self.num_heads)}

    def sees_other_positions(self, is_causal: bool) -> bool:
        return self.gate is not None and not (is_causal and self.gate_window == 1)

    def static_scales(self) -> Tensor | None:
        return self.left_out.new_ones(self.num_heads, 1) if self.gate is None else None

    def macs(self, queries: int, keys: int, *, is_causal: bool = False) -> Macs:
        total = super().macs(queries, keys, is_causal=is_causal)
        if self.gate is None:
            return total
        # One gate for a sequence, or one for each position where it may not see later ones.
        gates = queries if is_causal or self.causal_queries else 1
        maps = (self.gate.hidden, self.gate.output, self.gate.scale)
        weights = sum(each.weight.numel() for each in maps if each is not None)
        return total + Macs(gates * weights, 0)


def left_out_heads(num_heads: int, dropped_heads: int) -> Tensor:
    """`(experts, heads)`, 1 where the expert leaves the head out, in the order of
    `itertools.combinations`.

    >>> left_out_heads(3, 1).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    experts = torch.tensor(list(combinations(range(num_heads), dropped_heads)))
    return torch.zeros(len(experts), num_heads).scatter_(1, experts, 1.0)


def head_scales(gates: Tensor, left_out: Tensor, dropped: int, kept: float) -> Tensor:
    """How much each head counts in a mixture, aⱼ = h/(h−t) · (1 − Σ_{S∋j} g_S).

    From gates `(..., experts)` to `(..., heads)`, with t = `dropped` and the rest as
    `left_out_heads` and `kept_shares` give it. With the scales, Σ_S g_S · h/(h−t) Σ_{j∉S} oⱼWⱼ of
    the paper's equations 5 and 6 is Σⱼ aⱼ oⱼWⱼ: no expert is computed by itself.
    """
    without = gates
    if dropped > 1:  # else an expert leaves out the head of its own number
        with without_autocast(gates):
            without = gates @ left_out.to(gates.dtype)
    return (1 - without) / kept


def kept_shares(heads: int, dropped: int) -> dict[torch.dtype, float]:
    """1 − t/h as each dtype rounds it, so that uniform gates are divided to 1 where t is 1.

    >>> kept_shares(4, 1)[torch.float32]
    0.75
    """

    def single(number: float) -> float:
        return struct.unpack("f", struct.pack("f", number))[0]

    share = dropped / heads
    return {torch.float32: single(1 - single(share)), torch.float64: 1 - share}


def draw_expert(gates: Tensor, noise: Tensor) -> Tensor:
    """One expert per distribution `(..., experts)`, one-hot, each as often as its gate says.

        argmax_S g_S / e_S,  e_S = −log(1 − u_S) exponentially distributed

    The noise is u, uniform in [0, 1). Distributions that share it draw the same expert unless their
    gates differ enough to decide otherwise.

    >>> draw_expert(torch.tensor([[0.2, 0.8], [0.7, 0.3]]), torch.tensor([0.5, 0.4]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    # A least e keeps an expert of gate 0 from 0/0.
    e = -torch.log1p(-noise.to(gates.dtype)).clamp(max=-torch.finfo(gates.dtype).tiny)
    drawn = (gates / e).argmax(-1, keepdim=True)
    return torch.zeros_like(gates).scatter_(-1, drawn, 1.0)
